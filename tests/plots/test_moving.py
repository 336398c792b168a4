"""Figures that a reader moves: what they draw is what the planner, the engine and runs of four ranks say."""

import json
import re
from html import unescape
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import TinyGPT, World, mark, parallel, plan, zero
from course_lib.parallel import one_forward_one_backward
from course_lib.plots import move_cuts, move_schedules, move_sequence, move_units, move_zero
from course_lib.plots.canvas import CATEGORIES, MEMBERS, MOVING
from course_lib.plots.diagrams.pipeline import placed
from course_lib.plots.diagrams.schedules import schedule
from course_lib.plots.moving import cuts
from course_lib.plots.moving.pipeline import kept
from course_lib.plots.moving.units import held_bytes
from tests.plots.test_plots import image


def gpipe(rank, world_size, micro_batches):
    numbers = range(micro_batches)
    return [("forward", number) for number in numbers] + [("backward", number) for number in numbers]


FIGURES = {
    "zero": move_zero,
    "units": lambda: move_units([("embedding", 40), ("block", 72), ("head", 40)], world_size=4),
    "cuts": move_cuts,
    "sequence": move_sequence,
    "schedules": lambda: move_schedules({"all forward first": gpipe, "1F1B": one_forward_one_backward}),
}


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


def data(figure):
    """What the script of the page reads."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', figure.page)
    return json.loads(found)


def settings(figure):
    """The numbers of the chosen values, for every setting of the controls."""
    return product(*(range(len(control["values"])) for control in data(figure)["controls"]))


def still(figure, chosen):
    """The shapes and lanes of a still, by their keys."""
    layers = (
        layer["of"][",".join(str(int(chosen[number])) for number in layer["by"])] for layer in data(figure)["layers"]
    )
    rows = [row for layer in layers for row in layer]
    found = {row[0]: row for row in rows}
    assert len(found) == len(rows)  # a key stands once
    return found


def test_a_figure_shows_itself_and_says_the_same_as_text(figure) -> None:
    shown = figure._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert shown["text/plain"] == repr(figure) == f"{figure.still.caption}\n\n{figure.still.text}"
    assert image(shown["text/html"]) == (figure.still.caption, figure.still.svg)  # for a notebook that is not trusted
    assert figure.still.svg in figure.page  # for a page without scripts
    assert figure.still.caption in unescape(figure.page)
    assert not re.search(r"/\*[A-Z]+\*/|\b(STILL|LEGEND|CAPTION|TITLE)\b", figure.page)


def test_every_setting_has_a_still_and_a_caption(figure) -> None:
    captions = data(figure)["captions"]
    for chosen in settings(figure):
        assert still(figure, chosen)
        sentence = captions["of"][",".join(str(chosen[number]) for number in captions["by"])]
        assert sentence.endswith(".") and (sentence[0].isupper() or sentence[0].isdigit())


def test_shapes_lie_within_the_figure(figure) -> None:
    for chosen in settings(figure):
        for row in still(figure, chosen).values():
            lane = isinstance(row[4], list)
            top, high = (row[2], row[3]) if lane else (row[2], row[4])
            assert 0 <= top <= top + high <= figure.height, row
            edges = [box[1] for box in row[4]] if lane else [row[1] + row[3]]
            assert edges == sorted(edges), row
            assert edges[-1] <= 1.03 or (not lane and row[1] > 1), row


def test_the_zero_slider_has_the_bytes_of_the_plan() -> None:
    figure = move_zero()
    for stage, (number, gpus) in product(range(4), enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])):
        planned = plan(params=7.5e9, world_size=gpus, stage=stage, precision="mixed").bytes
        found = still(figure, (stage, number))
        total = sum(found[f"{state} {stage}"][3] for state in ("parameters", "gradients", "optimizer"))
        assert 120e9 * total == pytest.approx(sum(planned.values()), abs=0.05e9)
        number = f"{sum(planned.values()) / 1e9:.1f}".removesuffix(".0")
        assert found["big"][6] == found[f"total {stage}"][6] == f"{number} GB"
    assert [still(figure, (stage, 6))["big"][6] for stage in range(4)] == ["120 GB", "31.4 GB", "16.6 GB", "1.9 GB"]


def test_the_line_of_the_zero_slider_stands_at_the_memory_of_a_gpu() -> None:
    figure = move_zero(stage=1)
    line = still(figure, (1, 6))["limit 0"]
    assert line[1] + line[3] / 2 == pytest.approx(80 / 120, abs=1e-3)
    captions = data(figure)["captions"]["of"]
    fits = [captions[f"{stage},6"].endswith("They fit in the 80 GB of an H100.") for stage in range(4)]
    assert fits == [False, True, True, True]
    assert figure.still.caption.startswith("Stage 1 (ZeRO-1) on 64 GPUs: each holds 31.4 GB")


class Marks(torch.autograd.Function):
    """Marks the forward and the backward of a unit while it computes."""

    @staticmethod
    def forward(ctx, x, number):
        ctx.number = number
        mark(f"{number} forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        mark(f"{ctx.number} backward")
        return grad, None


class Layer(nn.Linear):
    def __init__(self, number):
        super().__init__(8, 8)
        self.number = number

    def forward(self, x):
        return Marks.apply(super().forward(x), self.number)


def step_of_stage_3(prefetch):
    engine = zero.Stage3(nn.Sequential(*map(Layer, range(5))), torch.optim.SGD, lr=0.1, prefetch=prefetch)
    engine(torch.ones(2, 8, requires_grad=True)).sum().backward()


@pytest.mark.slow
def test_units_hold_the_bytes_that_the_engine_holds() -> None:
    marks = [World(4).run(step_of_stage_3, prefetch).memory[0].marks for prefetch in range(3)]
    for prefetch in range(3):
        uses = schedule([72] * 5, prefetch)
        held = held_bytes([72] * 5, uses, 4)
        for use in uses:
            here, without = (marks[ahead][f"{use.unit} {use.when}"].by_category for ahead in (prefetch, 0))
            on_its_way = here["communication"] - without["communication"]  # the rest of it are gradients
            drawn = next(nbytes for until, nbytes in held if use.compute.start < until)
            assert here["parameters"] + on_its_way == drawn, (prefetch, use)


def test_units_breathe() -> None:
    lane = still(FIGURES["units"](), (0,))["unit 1"]
    notes = [(box[4], box[5] if len(box) > 5 else 1, box[6] if len(box) > 6 else 1) for box in lane[4]]
    once = [("arrives", 0.25, 1), ("forward", 1, 1), ("shard", 0.25, 0.25), ("arrives", 0.25, 1), ("backward", 1, 1)]
    waited = ("shard", 0.25, 0.25)
    assert notes == [waited, *once, waited]


def mlp(first, second):
    """An MLP whose matrices are cut in two of the four ways; its output, and whether it is that of one process."""
    torch.manual_seed(0)
    rank, x = dist.get_rank(), torch.randn(cuts.TOKENS, cuts.WIDTH)
    w1, w2 = torch.randn(cuts.WIDTH, cuts.WIDE), torch.randn(cuts.WIDE, cuts.WIDTH)

    def mine(whole, dim):
        return whole.chunk(2, dim)[rank].contiguous()

    def gathered(part):
        parts = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(parts, part)
        return torch.cat(parts, 1)

    if first == cuts.OUTPUT:
        features = nn.functional.gelu(x @ mine(w1, 1))
        features = gathered(features) if second == cuts.OUTPUT else features
    else:
        summand = mine(x, 1) @ mine(w1, 0)
        if second == cuts.OUTPUT:
            features = summand
            dist.all_reduce(features)
        else:
            features = torch.empty_like(mine(summand, 1))
            dist.reduce_scatter(features, [part.contiguous() for part in summand.chunk(2, 1)])
        features = nn.functional.gelu(features)
    if second == cuts.OUTPUT:
        y = gathered(features @ mine(w2, 1))
    else:
        y = features @ mine(w2, 0)
        dist.all_reduce(y)
    return torch.allclose(y, nn.functional.gelu(x @ w1) @ w2, rtol=1e-4, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("first", [cuts.OUTPUT, cuts.INPUT])
@pytest.mark.parametrize("second", [cuts.OUTPUT, cuts.INPUT])
def test_cut_matrices_need_the_collectives_that_are_drawn(first: str, second: str) -> None:
    run = World(2).run(mlp, first, second)
    assert list(run) == [True, True]
    assert run.comm[0].sent_bytes == cuts.sent_bytes(first, second)
    assert [call.op for call in run.comm[0].calls] == [op for _, op, _ in cuts.meetings(first, second)]


def test_gelu_of_a_sum_is_not_the_sum_of_gelus() -> None:
    for x in (2.0, -1.0, 1.0):
        assert cuts.gelu(x) == pytest.approx(nn.functional.gelu(torch.tensor(x)).item(), abs=1e-6)
    assert "GELU(2) + GELU(−1) = 1.80" in move_cuts().still.text and cuts.gelu(2) + cuts.gelu(-1) > 2 * cuts.gelu(1)


def test_sequence_parallel_cuts_what_was_copied() -> None:
    off, on = (still(move_sequence(), (number,)) for number in (0, 1))
    assert (off["big"][6], on["big"][6]) == ("100 %", "25 %")
    assert on["0 3"][4] == off["0 3"][4] / 4 and on["1 3"] == off["1 3"]  # the norm's part, and attention's


def forward_of_a_block(sequence_parallel):
    block = parallel.TensorParallelBlock(TinyGPT().blocks[0], None, sequence_parallel)
    with torch.no_grad():
        block(torch.randn(1, 2 if sequence_parallel else 8, 64))


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["off", "on"])
def test_a_block_calls_the_collectives_that_are_drawn(switch: str) -> None:
    run = World(4).run(forward_of_a_block, switch == "on")
    found = still(move_sequence(), (switch == "on",))
    drawn = [row[6].replace("-", "_") for key, row in sorted(found.items()) if key.endswith("collective")]
    assert [call.op for call in run.comm[0].calls] == drawn


@pytest.mark.parametrize("micro_batches", [1, 4, 8])
def test_ranks_keep_what_the_schedule_says(micro_batches: int) -> None:
    most = [
        [max(kept(row)) for row in placed([make(rank, 4, micro_batches) for rank in range(4)], 2)]
        for make in (gpipe, one_forward_one_backward)
    ]
    assert most == [[micro_batches] * 4, [min(4 - rank, micro_batches) for rank in range(4)]]


def test_the_bubble_is_that_of_the_formula_and_what_cannot_be_is_refused() -> None:
    figure = FIGURES["schedules"]()
    for place, (ranks, (number, micro_batches), chunks) in product(
        range(2), product((2, 4, 8), enumerate([1, 2, 4, 8, 16]), (1, 2))
    ):
        name, parts = (("all forward first", 1), ("1F1B", chunks))[place]
        found = still(figure, ((2, 4, 8).index(ranks), number, chunks - 1))
        if parts > 1 and micro_batches % ranks:
            words = " ".join(found[f"{name} {line}"][6] for line in (1, 2, 3))
            assert words.endswith("Choose a multiple of the number of ranks.")
            continue
        bubble = (ranks - 1) / (parts * micro_batches + ranks - 1)
        assert found[f"{name} idle"][6] == f"{100 * bubble:.0f} % idle"
        assert all(f"{name} {rank}" in found for rank in range(ranks))


def test_no_figure_uses_one_kind_of_colour_for_another(figure) -> None:
    kinds = [{*CATEGORIES.values()} - {MOVING}, {*MEMBERS}]  # bytes that travel have one colour everywhere
    fills = {look.get("fill") for look in figure.looks.values()}
    assert sum(bool(fills & kind) for kind in kinds) <= 1
