"""A rank holds, to the byte, what the formulas say."""

from contextlib import suppress
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim import Adam

from benchmarks.stages import PEAKS, peak_bytes
from course_lib import TinyGPT, World, batch, mark, zero

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]


def layers(*widths):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(into, out) for into, out in pairwise(widths)))


def training(engine, widths, dtype=torch.float32):
    """Make two steps, and mark gradients that are gone and that are averaged. Return the number of step counters.

    torch's Adam counts the steps of each of its parameters in 4 bytes.
    """
    made = getattr(zero, engine)(layers(*widths).to(dtype), Adam, lr=0.1)
    x = torch.ones(2, widths[0], dtype=dtype)
    for _ in range(2):
        made.zero_grad()
        mark("between steps")
        made(x).sum().backward()
        mark("after backward")
        made.step()
        mark("after step")
    return sum("step" in state for state in made.optimizer.state.values())


def measured(run, label):
    """Yield the bytes of each rank by category, without step counters."""
    for report, counts in zip(run.memory, run, strict=True):
        held = report.marks[label].by_category
        yield held | {"optimizer": held["optimizer"] - 4 * counts}


EVEN = (11, 12, 12, 12)  # 4 ranks divide each tensor without padding


def psi(widths):
    return sum(param.numel() for param in layers(*widths).parameters())


# Bytes for each parameter on N ranks: of parameters, of averaged gradients, and of the optimizer's state
FP32 = {
    "DataParallel": lambda n: (4, 4, 8),
    "Stage1": lambda n: (4, 4, 8 / n),
    "Stage2": lambda n: (4, 4 / n, 8 / n),
    "Stage3": lambda n: (4 / n, 4 / n, 8 / n),
}
# In bf16, the fp32 masters count as optimizer state, and averaged gradients are in fp32. Two values differ: stage 1 has
# the gradients that backward leaves, in bf16; stage 3 has no parameters, because it gathers them from the masters.
BF16 = {
    "DataParallel": lambda n: (2, 4, 12),
    "Stage1": lambda n: (2, 2, 12 / n),
    "Stage2": lambda n: (2, 4 / n, 12 / n),
    "Stage3": lambda n: (0, 4 / n, 12 / n),
}


@pytest.mark.parametrize(("dtype", "formulas"), [(torch.float32, FP32), (torch.bfloat16, BF16)])
@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_it_holds_what_the_formula_says(engine, world_size, dtype, formulas) -> None:
    run = World(world_size).run(training, engine, EVEN, dtype)
    parameters, gradients, optimizer = (psi(EVEN) * width for width in formulas[engine](world_size))
    for held in measured(run, "after backward"):
        assert (held["parameters"], held["gradients"], held["optimizer"]) == (parameters, gradients, optimizer)
    assert list(measured(run, "after step")) == list(measured(run, "after backward"))
    for held in measured(run, "between steps"):
        assert (held["parameters"], held["gradients"]) == (parameters, 0)


def test_stage_3_holds_no_more_than_its_units_in_use_at_once() -> None:
    def rank(depth):
        made = zero.Stage3(layers(*[32] * (depth + 1)), Adam, lr=0.1)
        for _ in range(2):
            made(torch.ones(1, 32)).sum().backward()
            made.step()
        return [param.numel() for param in made.module.parameters()]

    few, many = (World(4).run(rank, depth) for depth in (4, 12))
    assert set(many[0]) == {0}
    # 8 layers more: a quarter of their 16 bytes a parameter, an activation of 32 numbers, and a count of steps; a step
    # needs no more than it did.
    each = (32 * 32 + 32) * 16 // 4 + 4 * (32 + 1)
    assert many.memory[0].peak_bytes - few.memory[0].peak_bytes == 8 * each


def test_stage_3_frees_the_whole_model_after_its_use() -> None:
    def rank():
        made = zero.Stage3(layers(*[32] * 5), Adam, lr=0.1)

        def numel():
            return sum(param.numel() for param in made.parameters())

        state = made.state_dict()
        after = [numel()]
        made.load_state_dict(state)
        after.append(numel())
        with suppress(KeyError), made.whole():
            within = numel()
            raise KeyError
        return [*after, numel()], within

    assert list(World(2).run(rank)) == [([0, 0, 0], 4 * (32 * 32 + 32))] * 2


def test_stage_2_frees_gradients_as_backward_goes_on() -> None:
    def rank(engine):
        made = getattr(zero, engine)(layers(*[64] * 17), Adam, lr=0.1)
        mark("made")
        made(torch.ones(1, 64)).sum().backward()
        mark("after backward")
        return sum(param.nbytes for param in made.module.parameters())

    one, two = (World(4).run(rank, engine) for engine in ("Stage1", "Stage2"))
    parameters = one[0]
    during = [
        run.memory[0].marks["after backward"].current_bytes - run.memory[0].marks["made"].current_bytes
        for run in (one, two)
    ]
    assert during[0] == pytest.approx(parameters, rel=0.01) and during[1] == pytest.approx(parameters / 4, rel=0.01)
    assert (
        two.memory[0].marks["after backward"].peak_bytes
        < 1.75 * parameters
        < one.memory[0].marks["after backward"].peak_bytes
    )


def test_as_many_buckets_hold_whole_gradients_as_the_lesson_says() -> None:
    """Two if gradients arrive in the order of the list. In TinyGPT, those of norm2 arrive before those of attention."""

    def rank(make, x, bucket_bytes):
        made = zero.Stage2(make(), Adam, lr=0.1, bucket_bytes=bucket_bytes)
        held = []

        def count(_):
            sent = made._reduction[0] if made._reduction else None
            held.append(sum(bucket.flat_grad is not None or bucket is sent for bucket in made.buckets))

        for param in made.module.parameters():
            param.register_post_accumulate_grad_hook(count)
        made(x).sum().backward()
        return max(held)

    assert list(World(2).run(rank, lambda: layers(*[64] * 9), torch.ones(1, 64), 50_000)) == [2, 2]
    assert list(World(2).run(rank, TinyGPT, batch(0, 2)[0], 50_000)) == [3, 3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")
@pytest.mark.parametrize("engine", PEAKS)
def test_no_peak_is_above_that_of_fsdp2(engine) -> None:
    assert peak_bytes(engine) <= peak_bytes(PEAKS[engine])
