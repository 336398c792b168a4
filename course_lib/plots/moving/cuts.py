"""Tensor parallel: what each rank holds where a matrix or a sequence is cut, and where the ranks must meet."""

from itertools import accumulate
from math import erf, sqrt

from ...planner import PASSES
from ..canvas import MEMBERS, MOVING, percent
from .figure import Control, Moving
from .shapes import Shape, Still, filled, text

OUTPUT, INPUT = "output features", "input features"
TOKENS, WIDTH, WIDE = 8, 64, 256
HEAD, TALL, APART = 108, 76, 26
BOXES = {"x": (0.08, 40), "W₁": (0.2, 28), "x W₁": (0.2, 40), "GELU": (0.2, 40), "W₂": (0.08, TALL), "y": (0.08, 40)}
"""Of each tensor: its part of the figure's width, and its height."""
GAP = (1 - sum(width for width, _ in BOXES.values())) / len(BOXES)
LEFT = dict(zip(BOXES, accumulate((width + GAP for width, _ in BOXES.values()), initial=0.0), strict=False))
BETWEEN = {"x": "×", "W₁": "=", "x W₁": "→", "GELU": "×", "W₂": "="}
"""The sign between a tensor and the next one."""
LOOKS = {f"rank {rank}": colour for rank, colour in enumerate(MEMBERS)} | {"meets": MOVING}
PALE = {f"{name} pale": {"fill": fill, "fill_opacity": 0.3} for name, fill in LOOKS.items()}


def move_cuts() -> Moving:
    """Return an MLP on two ranks: a choice for each of its matrices, and the collectives that become necessary."""
    return Moving(
        title="Two matrices on two ranks: what a cut makes necessary",
        controls={"first": Control("Cut W₁ by", (OUTPUT, INPUT)), "second": Control("Cut W₂ by", (OUTPUT, INPUT), 1)},
        layers=[(["first", "second"], _matrices)],
        caption=(["first", "second"], _why),
        looks=filled(LOOKS) | PALE,
        legend={"rank 0": "rank 0", "rank 1": "rank 1", "meets": "ranks exchange"},
        height=HEAD + 2 * (TALL + APART) + 44,
    )


def words(first: str, second: str) -> dict[str, str]:
    """Return what each activation is over the ranks, before the ranks meet."""
    return {
        "x": "Replicate",
        "x W₁": "Shard" if first == OUTPUT else "Partial",
        "GELU": "Shard" if first == OUTPUT or second == INPUT else "Replicate",
        "y": "Shard" if second == OUTPUT else "Partial",
    }


def meetings(first: str, second: str) -> list[tuple[str, str, int]]:
    """Return after which tensors the ranks meet in forward, in which collective, and the columns of the tensor.

    At the end the output is Replicate, as the input is.
    """
    found = []
    if first == INPUT:
        found.append(("x W₁", "all_reduce" if second == OUTPUT else "reduce_scatter", WIDE))  # GELU needs the sum
    elif second == OUTPUT:
        found.append(("GELU", "all_gather", WIDE))  # every output feature needs all input features
    return [*found, ("y", "all_gather" if second == OUTPUT else "all_reduce", WIDTH)]


def sent_bytes(first: str, second: str) -> int:
    """Return the bytes that each of two ranks sends in forward, in fp32."""
    return sum(PASSES[op] * TOKENS * columns * 4 // 2 for _, op, columns in meetings(first, second))


def gelu(x: float) -> float:
    """Return GELU of a number, by its definition."""
    return x * (1 + erf(x / sqrt(2))) / 2


def _why(first: str, second: str) -> str:
    if first == INPUT:
        why = (
            f"Each rank has a summand of each feature, and GELU(2) + GELU(−1) = {gelu(2) + gelu(-1):.2f}, but "
            f"GELU(2\u00a0−\u00a01)\u00a0= {gelu(2 - 1):.2f}. So the ranks add before GELU, while the tensor is wide."
        )
    elif second == OUTPUT:
        why = "Every output feature needs all input features, so the ranks gather the wide tensor before W₂."
    else:
        why = (
            "W₁ leaves each rank with exactly the features that its part of W₂ needs. "
            "The ranks exchange once, at the end."
        )
    return f"{why} Each rank sends {sent_bytes(first, second):,} bytes."


def _matrices(first: str, second: str) -> Still:
    foot, still = HEAD + 2 * (TALL + APART), [text("on", 0, 64, "word", "bytes sent by each rank in forward")]
    still.append(text("big", 0, 40, "big", f"{sent_bytes(first, second):,}"))
    for name, (width, height) in BOXES.items():
        word = words(first, second).get(name, "")
        for rank in range(2):
            y = HEAD + rank * (TALL + APART) + (TALL - height) / 2
            frame = Shape("", LEFT[name], y, width, height, "ghost")
            still += _held(f"{name} {rank}", rank, 2, frame, _how(name, word, first, second))
        middle, after = LEFT[name] + width / 2, LEFT[name] + width + GAP / 2
        place, anchor = {"x": (0.0, "start"), "y": (1.0, "end")}.get(name, (middle, "middle"))
        still += [
            text(f"{name} name", middle, HEAD - 12, "title", name, "middle"),
            text(f"{name} after", after, HEAD - 12, "note", BETWEEN.get(name, ""), "middle"),
            text(f"{name} sign", middle, HEAD + TALL + APART - 8, "value", "+" * (word == "Partial"), "middle"),
            text(f"{name} word", place, foot + 2, "note", word, anchor),
        ]
    for line, (name, op, columns) in enumerate(meetings(first, second)):
        x, what = LEFT[name] + BOXES[name][0] + GAP / 2, f"{op.replace('_', '-')} {TOKENS} × {columns}"
        still += _meeting(name, x, GAP / 2, foot - 16, what, foot + 22 + 18 * line, 1.0 if name == "y" else x)
    return still


def _how(name: str, word: str, first: str, second: str) -> str:
    """Return which part of a tensor a rank has and uses."""
    if not word:
        return "columns" if {"W₁": first, "W₂": second}[name] == OUTPUT else "rows"
    if word == "Replicate":  # W₁ may need only some of x's columns
        return "part" if name == "x" and first == INPUT else "whole"
    return {"Partial": "summand", "Shard": "columns"}[word]


RANKS, STRIP = 4, 30
REGIONS = ("norm", "attention", "norm", "MLP")


def move_sequence() -> Moving:
    """Return a transformer block on four ranks, and what sequence parallel changes in it."""

    def block(switch: str) -> Still:
        on, foot = switch == "on", HEAD + RANKS * (STRIP + 14)
        still = [
            text("big", 0, 40, "big", percent(1 / RANKS if on else 1)),
            text("on", 0, 64, "word", "of the norms' activations, on each rank"),
        ]
        for place, name in enumerate(REGIONS):
            left, pair = place * 0.26, place % 2
            how = "columns" if pair else "rows" if on else "whole"
            for rank in range(RANKS):
                frame = Shape("", left, HEAD + rank * (STRIP + 14), 0.15, STRIP, "ghost")
                still += _held(f"{place} {rank}", rank, RANKS, frame, how)
            what = {"columns": "by features", "rows": "by tokens", "whole": "Replicate"}[how]
            still.append(text(f"{place} name", left + 0.075, HEAD - 12, "title", name, "middle"))
            still.append(text(f"{place} word", left + 0.075, foot + 2, "note", what, "middle"))
            if on or pair:
                op = ("reduce-scatter" if on else "all-reduce") if pair else "all-gather"
                x, line = left + 0.205, foot + 22 + 18 * (1 - pair)
                still += _meeting(f"{place}", x, 0.014, foot - 12, op, line, 1.0 if place == 3 else x)
        return still

    def caption(switch: str) -> str:
        gathered, reduced = PASSES["all_gather"] + PASSES["reduce_scatter"], PASSES["all_reduce"]
        ends = (
            f"An all-gather and a reduce-scatter send {gathered}\u00a0(N\u00a0−\u00a01)/N of the activations, "
            f"an all-reduce sends {reduced}\u00a0(N\u00a0−\u00a01)/N."
        )
        if switch == "on":
            return f"Between the pairs each rank has its part of the sequence, so no rank keeps a copy. {ends}"
        return (
            f"Inside a pair each rank has its own features. "
            f"Between the pairs all {RANKS} ranks have the same activations. {ends}"
        )

    return Moving(
        title="A transformer block on four ranks, with and without sequence parallel",
        controls={"switch": Control("sequence parallel", ("off", "on"))},
        layers=[(["switch"], block)],
        caption=(["switch"], caption),
        looks=filled(LOOKS) | PALE,
        legend={name: name for name in LOOKS if name != "meets"} | {"meets": "ranks exchange"},
        height=HEAD + RANKS * (STRIP + 14) + 46,
    )


def _held(key: str, rank: int, ranks: int, frame: Shape, how: str) -> list[Shape]:
    """Return a frame, the whole tensor, and in it the part that a rank has and uses."""
    _, x, y, w, h, *_ = frame
    whole, pale = Shape(key, x, y, w, h, f"rank {rank}"), f"rank {rank} pale"
    columns = whole._replace(x=x + w * rank / ranks, w=w / ranks)
    inside = {
        "whole": [whole],
        "summand": [whole._replace(look=pale)],
        "columns": [columns],
        "rows": [whole._replace(y=y + h * rank / ranks, h=h / ranks)],
        "part": [whole._replace(key=f"{key} pale", look=pale), columns],
    }
    return [frame._replace(key=f"{key} frame"), *inside[how]]


def _meeting(key: str, x: float, w: float, foot: float, what: str, y: float, place: float) -> list[Shape]:
    """Return a bar over all ranks, and below it the name of their collective."""
    bar = Shape(f"{key} meets", x - w / 2, HEAD - 2, w, foot - HEAD + 2, "meets")
    return [bar, text(f"{key} collective", place, y, "title", what, "end" if place == 1 else "middle")]
