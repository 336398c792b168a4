"""The data that ships with the course."""

import tomllib
from pathlib import Path

import torch

import course_lib
from course_lib import TinyGPT, batch, digits, text

FOLDER = Path(course_lib.__file__).parent / "data"


def test_digits_are_images_and_labels() -> None:
    images, labels = digits()

    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_first_image_is_a_zero() -> None:
    images, labels = digits()

    assert labels[0] == 0
    assert (16 * images[0, 0, 3]).tolist() == [0, 4, 12, 0, 0, 8, 8, 0]  # both sides of the ring, and a hole


def test_a_batch_is_sequences_of_the_text_and_what_follows() -> None:
    inputs, targets = batch(step=3, size=4, context=10)

    assert inputs.shape == targets.shape == (4, 10)
    for line, following in zip(inputs, targets, strict=True):
        assert bytes(line.tolist() + following[-1:].tolist()).decode() in text
        assert line[1:].equal(following[:-1])
    assert inputs.equal(batch(step=3, size=4, context=10)[0])
    assert not inputs.equal(batch(step=4, size=4, context=10)[0])


def test_the_model_sees_no_later_byte() -> None:
    torch.manual_seed(0)
    model, (inputs, _) = TinyGPT(), batch(step=0, size=2)
    changed = inputs.clone()
    changed[:, 20:] = 0

    scores, others = model(inputs), model(changed)

    assert scores.shape == (2, 32, 256)
    assert scores[:, :20].equal(others[:, :20])
    assert not scores[:, 20:].equal(others[:, 20:])


def test_a_tied_model_has_one_matrix_less() -> None:
    def numel(model: torch.nn.Module) -> int:
        return sum(param.numel() for param in model.parameters())

    assert numel(TinyGPT()) - numel(TinyGPT(tied=True)) == 256 * 64


def test_a_model_that_is_filled_later_has_the_values_of_one_that_was_filled_at_once() -> None:
    torch.manual_seed(0)
    plain = TinyGPT()
    with torch.device("meta"):
        filled = TinyGPT()
    torch.manual_seed(0)
    filled.to_empty(device="cpu")
    for module in filled.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    filled.init_weights()

    assert not list(plain.buffers())  # init_weights would have to fill them
    for one, other in zip(plain.parameters(), filled.parameters(), strict=True):
        assert one.equal(other)


def test_source_and_licence_travel_with_the_file() -> None:
    told = (FOLDER / "README.md").read_text()
    setuptools = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]

    assert "doi:10.24432/C50P49" in told and "CC BY 4.0" in told
    assert setuptools["package-data"]["course_lib.data"] == ["digits.npz", "text.txt", "README.md", "recorded/*.json"]
