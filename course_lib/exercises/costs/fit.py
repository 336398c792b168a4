"""alpha and bandwidth from measurements."""

from __future__ import annotations

import random

import numpy
import torch

from ..form.declare import Case, Exercise, Mistake
from . import stubs
from .ring import ring_seconds

SIZES = [4**power for power in range(5, 13)]  # 1 KiB to 16 MiB


def fit_link(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    """Return alpha and bandwidth, from the seconds that all-reduces of these sizes took along a ring."""
    measured = torch.tensor(seconds, dtype=torch.float64)
    messages = torch.full_like(measured, 2 * (ranks - 1))
    sent = messages / ranks * torch.tensor(sizes)
    # messages * alpha + sent / bandwidth = measured; each equation divided by what was measured
    equations = torch.stack([messages / measured, sent / measured], dim=1)
    alpha, inverse_bandwidth = torch.linalg.lstsq(equations, torch.ones(len(sizes), 1, dtype=torch.float64)).solution
    return alpha.item(), 1 / inverse_bandwidth.item()


def line(sizes: list[int], seconds: list[float], power: float = 1) -> tuple[float, float]:
    """Seconds without any bytes, and seconds a byte: errors count by the measured time to minus `power`."""
    n, t = numpy.array(sizes, dtype=float), numpy.array(seconds)
    slope, constant = numpy.polyfit(n, t, 1, w=t**-power)
    return float(constant), float(slope)


def of_line(constant: float, slope: float, ranks: int) -> tuple[float, float]:
    """alpha and bandwidth of a ring all-reduce whose times are on this line."""
    return constant / (2 * (ranks - 1)), 2 * (ranks - 1) / ranks / slope


def absolute_errors(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    return of_line(*line(sizes, seconds, power=0), ranks)


def divided_after_squaring(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    return of_line(*line(sizes, seconds, power=0.5), ranks)


def divided_twice(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    return of_line(*line(sizes, seconds, power=2), ranks)


def divided_by_size(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    n, t = numpy.array(sizes, dtype=float), numpy.array(seconds)
    slope, constant = numpy.polyfit(n, t, 1, w=1 / n)
    return of_line(float(constant), float(slope), ranks)


def alpha_of_all_messages(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds)
    return constant, of_line(constant, slope, ranks)[1]


def algorithm_bandwidth(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds)
    return of_line(constant, slope, ranks)[0], 1 / slope


def only_a_line(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds)
    return constant, 1 / slope


def plain_line(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds, power=0)
    return constant, 1 / slope


def one_round(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    alpha, bandwidth = fit_link(sizes, seconds, ranks)
    return 2 * alpha, bandwidth / 2


def seconds_a_byte(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    alpha, bandwidth = fit_link(sizes, seconds, ranks)
    return alpha, 1 / bandwidth


def swapped(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    alpha, bandwidth = fit_link(sizes, seconds, ranks)
    return bandwidth, alpha


def ends_only(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return of_line(seconds[0] - slope * sizes[0], slope, ranks)


def smallest_and_largest(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    return of_line(seconds[0], seconds[-1] / sizes[-1], ranks)


def as_many_messages_as_ranks(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds)
    return constant / (2 * ranks), 2 / slope


def whole_tensors(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    constant, slope = line(sizes, seconds)
    return of_line(constant, slope, ranks)[0], 2 * (ranks - 1) / slope


def by_sums(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    pairs = list(zip(sizes, seconds, strict=True))
    aa, ab, bb = sum(1 / t**2 for _, t in pairs), sum(n / t**2 for n, t in pairs), sum((n / t) ** 2 for n, t in pairs)
    ones, scaled = sum(1 / t for _, t in pairs), sum(n / t for n, t in pairs)
    determinant = aa * bb - ab * ab
    return of_line((ones * bb - scaled * ab) / determinant, (aa * scaled - ab * ones) / determinant, ranks)


def by_polyfit(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    return of_line(*line(sizes, seconds), ranks)


def draw(rng: random.Random, number: int) -> Case:
    ranks, alpha = (4, 2, 3)[number % 3] if number < 3 else rng.randint(3, 16), rng.uniform(0.5e-3, 2e-3)
    bandwidth = rng.uniform(0.5e9, 2e9)
    sizes = SIZES[: 8 - number % 3]
    noise = [rng.uniform(-0.15, 0.15) for _ in sizes]
    true = [ring_seconds("all_reduce", size, ranks, alpha, bandwidth) for size in sizes]
    seconds = [t * (1 + error) for t, error in zip(true, noise, strict=True)]
    about = f"{ranks} ranks, {len(sizes)} sizes"
    return Case(world_size=0, args=lambda rank: (list(sizes), list(seconds), ranks), about=about)


exercise = Exercise(
    name="costs.fit",
    title="Measure your own world",
    task="Return alpha and bandwidth, two numbers, so that `ring_seconds` fits what was measured: the sum of the "
    "squares of the *relative* errors is as small as it can be. Of at least two different sizes of all-reduces there "
    "is one time each. Compute in float64: bytes are large and seconds small.",
    stub=stubs.fit_link,
    reference=fit_link,
    draw=draw,
    tolerance=1e-5,
    variants={"sums": by_sums, "polyfit": by_polyfit},
    mistakes=[
        Mistake(
            id="absolute-errors",
            solution=absolute_errors,
            told="Errors count in seconds, so the largest sizes decide alone: a thousandth of their time is more than "
            "all that a small message takes, and alpha is lost in it.",
            action="Divide both sides of each equation by its measured time, then solve.",
        ),
        Mistake(
            id="divided-after-squaring",
            solution=divided_after_squaring,
            told="Each squared error is divided by the time, and not by the time squared: your weights are square "
            "roots of those that were asked for.",
            action="Divide the error by the time first, then square.",
        ),
        Mistake(
            id="divided-twice",
            solution=divided_twice,
            told="Each error is divided by its time twice. (`polyfit` multiplies errors by `w` before it squares.)",
            action="Divide by the time once.",
        ),
        Mistake(
            id="divided-by-size",
            solution=divided_by_size,
            told="Errors are divided by the size, and not by the time: now the smallest messages decide alone.",
            action="Divide by what was measured.",
        ),
        Mistake(
            id="only-a-line",
            solution=only_a_line,
            told="You found a line: seconds without bytes, and bytes a second of the whole all-reduce. But an "
            "all-reduce is 2(N−1) messages, and sends 2(N−1)/N of its bytes.",
            action="Divide the constant by 2(N−1); multiply the bytes a second by 2(N−1)/N.",
        ),
        Mistake(
            id="plain-line",
            solution=plain_line,
            told="You fitted a line, with errors in seconds, and called its constant alpha. Errors should be relative; "
            "and an all-reduce is 2(N−1) messages, and sends 2(N−1)/N of its bytes.",
            action="Divide each equation by its measured time first. Then turn the line into alpha and bandwidth.",
        ),
        Mistake(
            id="alpha-of-all-messages",
            solution=alpha_of_all_messages,
            told="Your alpha is that of all messages together. An all-reduce makes 2(N−1) of them.",
            action="Divide the constant by 2(N−1).",
        ),
        Mistake(
            id="algorithm-bandwidth",
            solution=algorithm_bandwidth,
            told="Your bandwidth is bytes of the tensor a second. What goes over the link is 2(N−1)/N as much.",
            action="Multiply by 2(N−1)/N.",
        ),
        Mistake(
            id="one-round",
            solution=one_round,
            told="You count one round of messages. These were all-reduces: two rounds.",
            action="Count 2(N−1) messages.",
        ),
        Mistake(
            id="seconds-a-byte",
            solution=seconds_a_byte,
            told="What you return second are seconds a byte, and bandwidth is bytes a second.",
            action="Return its inverse.",
        ),
        Mistake(
            id="swapped",
            solution=swapped,
            told="Bandwidth comes first and alpha second.",
            action="Swap them. `polyfit` gives the highest power first.",
        ),
        Mistake(
            id="ends-only",
            solution=ends_only,
            told="You draw the line through the first and the last measurement, and the noise of these two decides.",
            action="Let all sizes count: least squares.",
        ),
        Mistake(
            id="smallest-and-largest",
            solution=smallest_and_largest,
            told="You take the smallest all-reduce to be alpha alone, and the largest to be bytes alone. Each is both.",
            action="Solve for both unknowns at once: least squares.",
        ),
        Mistake(
            id="as-many-messages-as-ranks",
            solution=as_many_messages_as_ranks,
            told="You count N messages a round. There are N−1.",
            action="Replace N by N−1 where you count messages.",
        ),
        Mistake(
            id="whole-tensors",
            solution=whole_tensors,
            told="In your bandwidth each message carries the whole tensor. It carries 1/N.",
            action="Divide by N: 2(N−1)/N of the bytes are sent.",
        ),
    ],
    hints=[
        "`ring_seconds` is a line over the size: a constant, and a slope. What are the two, in alpha and bandwidth?",
        "The constant is 2(N−1) alpha, the slope 2(N−1)/N / bandwidth. A line is fitted by least squares; so that "
        "errors are relative, divide each equation by its measured time.",
        "`torch.linalg.lstsq(A, b).solution` with rows of A like (messages / t, sent / t), and b of ones; or "
        "`numpy.polyfit(n, t, 1, w=1 / t)`.",
        "```python\nt = torch.tensor(seconds, dtype=torch.float64)\nmessages = torch.full_like(t, ...)\n"
        "sent = messages / ranks * torch.tensor(sizes)\nA = torch.stack([messages / t, ...], dim=1)\n"
        "alpha, inverse = torch.linalg.lstsq(A, torch.ones(len(t), 1, dtype=t.dtype)).solution\n```",
    ],
    explanation="Two unknowns, and an equation for each size. Sizes span four powers of ten, and times as well, so "
    "seconds as errors would let the largest size decide about everything. Relative errors let each size count alike: "
    "the small ones tell alpha, the large ones the bandwidth.",
)
