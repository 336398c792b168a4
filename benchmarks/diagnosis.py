"""What diagnosis costs: a training step, beside the same without the records that messages and warnings are made of."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course_lib import World, zero
from course_lib.data import TinyGPT, batch
from course_lib.meter import SourceLine
from course_lib.world.collectives import local_call, recorder
from course_lib.world.collectives.rank import InterposedRank
from course_lib.world.error_report import Unfinished

from .measure import Row

GOAL = 1.03
"""The most of a step's time without records that a step with them may take."""

PAIRS = 101
LINE = SourceLine(filename="", line=0, function="")


def by_hand() -> Callable[[], None]:
    """A step of data parallel with an asynchronous call for each parameter: the most calls that a lesson makes."""
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = batch(dist.get_rank())

    def step() -> None:
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
        for handle in handles:
            handle.wait()
        optimizer.step()
        optimizer.zero_grad()

    return step


def stage3() -> Callable[[], None]:
    """A step of ZeRO-3, with a unit for each block."""
    model = zero.Stage3(TinyGPT(), torch.optim.AdamW, lr=1e-3)
    x, y = batch(dist.get_rank())

    def step() -> None:
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        model.step()
        model.zero_grad()

    return step


def pairs_of_seconds(program: Callable[[], Callable[[], None]]) -> list[tuple[float, float]]:
    """On a rank: the processor time of a step on all ranks, which are threads of one process, with records and without.

    Steps are taken in turns, because a machine that others use, too, is now fast and now slow.
    """
    step = program()
    step()
    pairs = []
    for number in range(PAIRS):
        times = {}
        for recorded in (True, False) if number % 2 else (False, True):
            dist.barrier()
            with nullcontext() if recorded or dist.get_rank() else without_records():
                dist.barrier()
                start = time.process_time()
                step()
                dist.barrier()
                times[recorded] = time.process_time() - start
                dist.barrier()
        pairs.append((times[True], times[False]))
    return pairs


def without_records() -> ExitStack:
    """A context in which ranks record no lines, exceptions and handles, and check no arguments."""
    stack = ExitStack()
    stack.enter_context(patch.object(local_call, "receiver_of_work", lambda: None))
    stack.enter_context(patch.object(recorder, "learner_line", lambda thread: LINE))
    stack.enter_context(patch.object(recorder, "library_function", lambda line: ""))
    stack.enter_context(patch.object(recorder, "check", lambda *arguments: None))
    stack.enter_context(patch.object(Unfinished, "of", lambda error: None))
    stack.enter_context(patch.object(InterposedRank, "asked", lambda rank, work: None))
    return stack


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    for program in (by_hand, stage3):
        pairs = World(2, backend="simulated", timeout=600).run(pairs_of_seconds, program)[0]
        ours, peer = sorted(pairs, key=lambda pair: pair[0] / pair[1])[PAIRS // 2]
        what = f"a step of 2 ranks with what diagnosis records, {program.__name__}"
        yield Row(what=what, ours=ours, peer=peer, peer_name="without", most_of_peer=GOAL)
