"""Models by name: their parameter counts follow from their shapes, and are the published ones."""

from dataclasses import replace

import pytest

from course_lib.planner import MODELS, plan
from course_lib.planner.timing.work import backward, forward
from course_lib.planner.training.shapes import of_transformer

# GPT-2: the counts of the released checkpoints. The others: elements of the released weights.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama-405b": 405_853_388_800,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize(("name", "params"), PUBLISHED.items())
def test_published_parameter_counts(name: str, params: int) -> None:
    assert of_transformer(MODELS[name]).params == params


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("gpt-oss-120b", {"window": 0}, "windowed_layers=18, window=0: it says nothing without window"),
        ("llama3-8b", {"window": 4096}, "window=4096, windowed_layers=0: it says nothing without windowed_layers"),
        ("mixtral-8x7b", {"dense_layers": 1}, "dense_layers=1, dense_ffn=0: it says nothing without dense_ffn"),
    ],
)
def test_a_number_without_its_companion_is_refused(name: str, given: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(MODELS[name], **given)


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.342), ("3b", 3.574), ("8b", 8.858), ("80b", 79.99)])
def test_the_playbooks_models_have_its_counts(name: str, billions: float) -> None:
    assert of_transformer(MODELS[f"playbook-{name}"]).params / 1e9 == pytest.approx(billions, rel=2e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("zero-")])
def test_the_zero_papers_models_have_the_size_in_their_name(name: str) -> None:
    billions = float(name.removeprefix("zero-").removesuffix("b"))

    assert of_transformer(MODELS[name]).params / 1e9 == pytest.approx(billions, rel=0.05)


def test_every_model_is_published_or_the_zero_papers() -> None:
    assert {name for name in MODELS if not name.startswith(("zero-", "playbook-"))} == PUBLISHED.keys()
    assert all(model.source for model in MODELS.values())


def test_grouped_queries_have_fewer_keys_and_values() -> None:
    llama = MODELS["llama-70b"]

    assert llama.kv_hidden == 1024
    assert (1024, 8192) in llama.layer


@pytest.mark.parametrize("name", ["gpt2-xl", "zero-100b"])
def test_flops_are_narayanans(name: str) -> None:
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with full recomputation: arXiv 2104.04473, section 5.1."""
    gpt, batch, s = MODELS[name], 3, 1024
    planned = plan(model=name, batch=batch, sequence=s, checkpointing="full")
    pieces = [piece for run in (forward, backward) for piece in run(planned.model, planned.settings)]
    flops = sum(piece.matrices + piece.attention for piece in pieces)
    h, layers = gpt.hidden, gpt.layers

    assert flops == pytest.approx(96 * batch * s * layers * h**2 * (1 + s / (6 * h) + gpt.vocab / (16 * layers * h)))


def test_a_bare_number_costs_six_flops_a_parameter_and_token() -> None:
    planned = plan(params=7e9, batch=2, sequence=512)
    pieces = [piece for run in (forward, backward) for piece in run(planned.model, planned.settings)]
    flops = sum(piece.matrices + piece.attention for piece in pieces)

    assert flops == pytest.approx(6 * 7e9 * 2 * 512)
