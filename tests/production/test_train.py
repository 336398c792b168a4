"""The training program of lesson 11."""

import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from course_lib import TinyGPT, World, batch, production

PROGRAM = Path(production.__file__).parent / "train.py"


def built():
    """Return what part 3 of the program makes on a rank."""
    part = re.search(r"^    # 3\. .*?(?=^    # 4\. )", PROGRAM.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names = runpy.run_path(str(PROGRAM)) | {"device": torch.device("cpu")}
    exec("if True:\n" + part[0], names)  # it is indented, as in `main`
    return names["model"]


def first_loss(model):
    inputs, targets = batch(0, 4)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()


def on_a_rank():
    model = built()
    params = {name: param.full_tensor().detach() for name, param in model.named_parameters()}
    return params, first_loss(model)


def test_the_program_starts_as_a_model_that_was_never_on_the_meta_device() -> None:
    torch.manual_seed(0)
    plain = TinyGPT(context=32)

    for params, loss in World(2).run(on_a_rank):
        assert abs(params["embedding.weight"].std().item() - 0.02) < 0.001
        for name, param in plain.named_parameters():
            assert param.equal(params[name]), name
        assert abs(loss - first_loss(plain)) < 1e-5


@pytest.mark.slow
def test_a_rest_of_micro_batches_does_not_reach_the_next_epoch(tmp_path: Path) -> None:
    program, folder = tmp_path / "train.py", tmp_path / "saved"
    program.write_text(PROGRAM.read_text(encoding="utf-8").replace("= 3, 32, 2", "= 2, 128, 4"), encoding="utf-8")
    whole = World(1).run_file(program, folder).output[0]  # 7 micro-batches in an epoch: one step
    shutil.rmtree(folder / "epoch-1")

    assert World(1).run_file(program, folder).output[0] == whole.splitlines(keepends=True)[1]
