"""A figure of the kit, the world that it is measured in, and figures as Markdown."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from course_lib import World

GPU = torch.cuda.is_available()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that was measured, or a text such as an error's message; None, and why it is absent.

    `beside` is what to compare it with, by name, in the same unit.
    """

    what: str
    value: float | str | None = None
    unit: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)
    absent: str = "no GPU on this machine"

    @property
    def text(self) -> str:
        if self.value is None:
            return f"absent: {self.absent}"
        return self.value if isinstance(self.value, str) else f"{self.value:,.4g} {self.unit}"

    @property
    def record(self) -> dict[str, Any]:
        """What results.json has of it: why it is absent only if it is."""
        return {name: value for name, value in asdict(self).items() if name != "absent" or self.value is None}


Jobs = Mapping[str, Callable[[], Iterable[Figure]]]
"""The parts of a step. If one fails, the next is run."""


def megabytes(what: str, nbytes: float | None, **beside: float) -> Figure:
    """What CUDA's allocator has counted, if there is a GPU, next to other bytes."""
    value = None if nbytes is None else nbytes / 1e6
    return Figure(what=what, value=value, unit="MB", beside={name: other / 1e6 for name, other in beside.items()})


def on_the_gpu(ranks: int, **options: Any) -> World:
    """A world on one GPU: NCCL for one rank, a shared card for more. Without a GPU, a world of processes."""
    if GPU:
        return World(ranks, backend="nccl:1", share_gpu=ranks > 1, **options)
    return World(ranks, backend="processes", **options)


def step_seconds(step: Callable[[], object], steps: int = 10) -> float:
    """On a rank: the mean time of a step, after five that are not counted: the first ones load and choose kernels."""
    for number in range(5 + steps):
        if number == 5:
            start = now()
        step()
    return (now() - start) / steps


def now() -> float:
    """The time when the GPU has done what it was told."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def markdown(figures: Iterable[Figure]) -> str:
    """A table, and below it the texts of several lines."""
    rows, texts = ["| what | value | beside it |", "|---|---|---|"], []
    for figure in figures:
        if "\n" in figure.text:
            texts.append(f"{figure.what}:\n\n```text\n{figure.text}\n```")
        else:
            beside = ", ".join(f"{number:,.4g} {figure.unit} ({name})" for name, number in figure.beside.items())
            rows.append(f"| {figure.what} | {figure.text} | {beside} |")
    return "\n\n".join(["\n".join(rows), *texts])
