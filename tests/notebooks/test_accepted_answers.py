"""Later cells work with every answer that an exercise accepts, not only with its reference."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from course_lib import World, exercises, parallel, planner
from course_lib.data import TinyGPT
from course_lib.parallel import Cut

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SHARDED_STEPS = exercises.get("zero1.sharded_step").variants


def run_cells(notebook: str, beginnings: tuple[str, ...], names: dict[str, Any]) -> dict[str, Any]:
    """Run the cells that begin with one of `beginnings`, after the definition of `names`; return all names."""
    cells = nbformat.read(NOTEBOOKS / notebook, as_version=4).cells
    for beginning in beginnings:
        [source] = [cell.source for cell in cells if cell.source.startswith(beginning)]
        exec(compile(source, f"<{beginning}>", "exec"), names)
    return names


def reference(exercise: str) -> Callable[..., Any]:
    return exercises.get(exercise).reference


@pytest.mark.slow
@pytest.mark.parametrize("answer", SHARDED_STEPS)
def test_zero_1_goes_on_from_the_checkpoint_of_every_accepted_step(answer: str) -> None:
    names: dict[str, Any] = {
        "partition": reference("zero1.partition"),
        "make_sharded_step": SHARDED_STEPS[answer](),
        "consolidate": reference("zero1.consolidate"),
        "world": (world := World(4)),
        "decimals": lambda losses, first: [loss.item() for loss in losses],
    }
    defined = ("from collections", "def make_model", "def train(", "class Sharded:", "def train_and_save", "def go_on")
    lesson = run_cells("04-zero-1.ipynb", defined, names)

    without_a_stop = world.run(lesson["train"], lesson["Sharded"], 4)[0][2:]
    resumed = World(1).run(lesson["go_on"], partial(Adam, lr=3e-3))[0]

    assert resumed == pytest.approx(without_a_stop, rel=1e-5)


def merge_of_two_dimensions(output: Tensor, total: Tensor, seen: Tensor, seen_total: Tensor) -> tuple[Tensor, Tensor]:
    totals = torch.cat([total, seen_total], dim=1)
    merged = torch.einsum("tk,kts->ts", totals.softmax(dim=1), torch.stack([output, seen]))
    return merged, totals.logsumexp(dim=1, keepdim=True)


def test_ring_attention_by_autograd_gives_a_merge_only_two_dimensions() -> None:
    assert exercises.get("context.merge").check(merge_of_two_dimensions).status == "passed"

    names: dict[str, Any] = {"merge": merge_of_two_dimensions}
    beginnings = ("from collections", "def attend(", "def passed(", "def by_autograd(")
    lesson = run_cells("15-long-sequences-and-experts.ipynb", beginnings, names)

    def attention(tokens: int) -> Tensor:
        torch.manual_seed(rank := dist.get_rank())
        query, key, value = torch.randn(3, 1, 1, tokens, 16)
        mine: Tensor = lesson["by_autograd"](query, key, value, None)
        keys, values = (gathered(one) for one in (key, value))
        assert torch.allclose(mine, F.scaled_dot_product_attention(query, keys, values), atol=1e-5), rank
        return mine

    World(3).run(attention, 8)


def gathered(part: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, dim=2)


def mixture_by_pieces(tokens: Tensor, choice: Tensor, expert: Callable[[Tensor], Tensor]) -> Tensor:
    counts = choice.bincount(minlength=dist.get_world_size())
    dist.all_to_all_single(arriving := torch.empty_like(counts), counts)
    sent, received = counts.tolist(), arriving.tolist()
    order = choice.argsort(stable=True)
    arrived = parallel.all_to_all(tokens[order], sent, received)
    computed = torch.cat([expert(piece) for piece in arrived.split(received)])
    return parallel.all_to_all(computed, received, sent)[order.argsort()]


def test_an_expert_is_counted_with_all_its_tokens_if_it_is_called_for_each_piece(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exercises.get("context.mixture").check(mixture_by_pieces).status == "passed"

    guess = SimpleNamespace(reveal=lambda sent_bytes: None)
    names: dict[str, Any] = {"mixture": mixture_by_pieces, "guess_tokens_sent": guess}
    run_cells("15-long-sequences-and-experts.ipynb", ("from collections", "def route("), names)

    counts = capsys.readouterr().out.splitlines()[0].removeprefix("tokens of each expert: ")
    assert sum(map(int, counts.split())) == 4 * 1024


def loss_by_keyword(model: Callable[..., Tensor], tokens: Tensor, mine: Tensor) -> Tensor:
    targets = tokens[1:]
    total = F.cross_entropy(model(tokens[mine], places=mine), targets[mine], ignore_index=0, reduction="sum")
    return total * dist.get_world_size() / (targets != 0).sum()


@pytest.mark.slow
def test_a_cut_sequence_trains_with_places_by_keyword() -> None:
    assert exercises.get("context.loss").check(loss_by_keyword).status == "passed"

    def losses(loss: Callable[..., Tensor]) -> list[str]:
        names: dict[str, Any] = {"loss_of_my_tokens": loss}
        lesson = run_cells("15-long-sequences-and-experts.ipynb", ("from collections", "def train("), names)
        result: list[str] = World(2).run(lesson["train"], parallel.ring_attention, Cut.zigzag, 16, steps=1)[0]
        return result

    assert losses(loss_by_keyword) == losses(reference("context.loss"))


def bubble_as_a_fraction(world_size: int, micro_batches: int, chunks: int) -> Any:
    return Fraction(world_size - 1, chunks * micro_batches + world_size - 1)


def test_a_bubble_may_be_a_fraction_which_python_3_11_cannot_format() -> None:
    assert exercises.get("pipeline.bubble").check(bubble_as_a_fraction).status == "passed"

    names: dict[str, Any] = {"bubble": bubble_as_a_fraction, "table": lambda rows, corner: None}
    lesson = run_cells("14-pipeline.ipynb", ("def bubbles(",), names)

    assert lesson["bubbles"](4)["4 ranks"] == "42.9%"


def train_as_usual(engine: Any, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    engine.train()
    losses = []
    for x, y in batches:
        engine.zero_grad(set_to_none=True)
        loss = engine(*(part.chunk(dist.get_world_size())[dist.get_rank()] for part in (x, y)))
        loss.backward()
        engine.step()
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        losses.append(mean.item())
    return losses


@pytest.mark.slow
def test_the_engine_of_the_capstone_trains_with_the_calls_that_the_courses_engines_accept() -> None:
    assert exercises.get("capstone.train").check(train_as_usual).status == "passed"

    answers = ("shard_params", "start_gather", "sharded_forward")
    beginnings = ("from collections", *(f"{name} = exercise" for name in answers), "class Yours", "def zero_grad(")
    lesson = run_cells("12-capstone.ipynb", (*beginnings, "class Embed(", "def units_of(", "batches = "), {})

    def losses(train: Callable[..., list[float]]) -> list[float]:
        return train(lesson["Yours"](lesson["small"]()), lesson["batches"][:2])

    assert World(2).run(losses, train_as_usual)[0] == World(2).run(losses, reference("capstone.train"))[0]


def train_with_the_optimizer(engine: Any, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    engine.optimizer.zero_grad()
    return train_as_usual(engine, batches)


def test_the_capstones_loop_may_not_call_what_the_lessons_own_engine_does_not_have() -> None:
    verdict = repr(exercises.get("capstone.train").check(train_with_the_optimizer))

    assert "AttributeError: this engine has no .optimizer. Your own stage 3 has only engine(x, y)" in verdict
    assert "in train_with_the_optimizer:  engine.optimizer.zero_grad()" in verdict


def bytes_as_fractions(*args: Any) -> Any:
    return {part: Fraction(nbytes) for part, nbytes in reference("memory.rank_bytes")(*args).items()}


def ring_as_a_fraction(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> Any:
    return (1 + (op == "all_reduce")) * (ranks - 1) * (Fraction(alpha) + Fraction(nbytes) / ranks / Fraction(bandwidth))


def tokens_as_fractions(flops: float, bandwidth: float, ranks: int, grad_bytes: int) -> Any:
    tokens = Fraction(flops) / Fraction(bandwidth) * (ranks - 1) / ranks
    return tokens, tokens * (2 + grad_bytes) / 4


@pytest.mark.parametrize(
    ("name", "answer", "notebook", "beginnings"),
    [
        ("memory.rank_bytes", bytes_as_fractions, "02-where-the-memory-goes", ("optimizer_parts",)),
        ("costs.ring", ring_as_a_fraction, "09-what-communication-costs", ("LINKS", "alpha, bandwidth = LINKS")),
        ("costs.tokens_to_hide", tokens_as_fractions, "09-what-communication-costs", ("def limits(",)),
        ("costs.tokens_to_hide", tokens_as_fractions, "12-capstone", ("BRIEF", "tokens_to_hide")),
    ],
)
def test_a_fraction_is_formatted_like_a_float(
    name: str, answer: Callable[..., Any], notebook: str, beginnings: tuple[str, ...]
) -> None:
    assert exercises.get(name).check(answer).status == "passed"

    def tables(solution: Callable[..., Any]) -> list[Any]:
        shown: list[Any] = []
        names: dict[str, Any] = {
            reference(name).__name__: solution,
            "exercise": lambda _: SimpleNamespace(answer=lambda _: solution),
            "table": lambda rows, corner="": shown.append(rows),
            "plots": SimpleNamespace(table=shown.append),
            "planner": planner,
        }
        guesses = ("guess_stage_1_fp32", "guess_equal_parts", "guess_tokens_over_ethernet")
        run_cells(f"{notebook}.ipynb", beginnings, names | dict.fromkeys(guesses, SimpleNamespace(reveal=float)))
        return shown

    assert tables(answer) == tables(reference(name)) != []


def model_bytes_as_floats(model: Any) -> dict[str, float]:
    return {part: float(nbytes) for part, nbytes in reference("memory.model")(model).items()}


def state_bytes_as_floats(model: Any, optimizer: str) -> float:
    return float(reference("memory.optimizer")(model, optimizer))


def test_bytes_that_are_floats_are_printed_like_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"memory.model": model_bytes_as_floats, "memory.optimizer": state_bytes_as_floats}
    for name, answer in answers.items():
        assert exercises.get(name).check(answer).status == "passed"

    def printed(*solutions: Callable[..., Any]) -> str:
        memory = SimpleNamespace(marks={"step 2": SimpleNamespace(by_category=Counter())})
        names: dict[str, Any] = {
            "nn": nn, "TinyGPT": TinyGPT, "model": TinyGPT(), "model_bytes": solutions[0], "state_bytes": solutions[1],
            "guess_tied": SimpleNamespace(reveal=print), "makers": ["sgd", "adam"], "activations": int,
            "side_by_side": SimpleNamespace(memory=[memory] * 2), "plots": SimpleNamespace(table=print),
            "by_size": {4: 1_256_740, 8: 2_513_220},
        }  # fmt: skip
        beginnings = ("tied = TinyGPT", "rows = {}\nfor name, memory in zip(makers", "each = (by_size")
        run_cells("02-where-the-memory-goes.ipynb", beginnings, names)
        return capsys.readouterr().out

    assert "65,536 bytes" in (right := printed(*map(reference, answers)))
    assert printed(*answers.values()) == right
