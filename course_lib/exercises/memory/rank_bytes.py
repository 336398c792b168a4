"""What one rank holds when the ranks share some parts among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .mixed_precision import PARTS, PRECISIONS, training_bytes

MOMENTS = ["momentum", "variance"]
OPTIMIZER = ["master weights", *MOMENTS]
GRADIENTS = ["gradients", "fp32 gradients"]
CUTS: tuple[list[str], ...] = (
    OPTIMIZER,
    OPTIMIZER + GRADIENTS,
    [*OPTIMIZER, *GRADIENTS, "parameters"],
    [],
    ["parameters"],
    ["gradients", *MOMENTS],
)


def rank_bytes(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    """Return the bytes of each part of the model states on the rank that holds most."""
    largest_share = -(-psi // world_size)  # rounded up
    whole, shard = training_bytes(psi, precision), training_bytes(largest_share, precision)
    return {part: shard[part] if part in cut else whole[part] for part in whole}


def with_share(share_of: Callable[[int, int], int]) -> Solution:
    """`rank_bytes`, where of psi elements on so many ranks the fullest has `share_of` them."""

    def calculator(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
        whole, shard = training_bytes(psi, precision), training_bytes(share_of(psi, world_size), precision)
        return {part: (shard if part in cut else whole)[part] for part in whole}

    return calculator


def with_bytes(bytes_of: Callable[[int, int], float]) -> Solution:
    """`rank_bytes`, where of the bytes of a part that is cut, on so many ranks, the fullest has `bytes_of` them."""

    def calculator(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, float]:
        whole = training_bytes(psi, precision)
        return {part: bytes_of(nbytes, world_size) if part in cut else nbytes for part, nbytes in whole.items()}

    return calculator


def with_cut(cut_for: Callable[[list[str]], Collection[str]]) -> Solution:
    """`rank_bytes`, where `cut_for` says what is cut."""
    return lambda psi, precision, world_size, cut: rank_bytes(psi, precision, world_size, list(cut_for(cut)))


def only_what_is_cut(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return {part: nbytes for part, nbytes in rank_bytes(psi, precision, world_size, cut).items() if part in cut}


def what_is_saved(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    held = rank_bytes(psi, precision, world_size, cut)
    return {part: nbytes - held[part] for part, nbytes in training_bytes(psi, precision).items()}


def elements(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return {part: -(-psi // world_size) if part in cut else psi for part in PARTS}


def all_ranks_together(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    held = rank_bytes(psi, precision, world_size, cut)
    return {part: world_size * nbytes for part, nbytes in held.items()}


def overwrites_the_whole(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    held = training_bytes(psi, precision)
    remainder = psi % world_size
    share = psi // world_size + (1 if remainder else 0)
    for part in cut:
        held[part] = training_bytes(share, precision)[part]
    return held


def element_by_element(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    share = (psi + world_size - 1) // world_size
    return {part: each * (share if part in cut else psi) for part, each in training_bytes(1, precision).items()}


def draw(rng: random.Random, number: int) -> Case:
    psi, world_size, precision = rng.randint(500, 10_000), rng.randint(3, 64), PRECISIONS[number % 3]
    cut = list(CUTS[number % len(CUTS)])
    if number == 0:
        psi, world_size, precision = 7 * 10**9, 8, "mixed"
    else:
        psi += -psi % world_size + (1 if number % 2 else -1)  # rounds down, or leaves more than one over
    about = f"psi = {psi:,}, {precision}, {world_size} ranks, cut are {', '.join(cut) or 'none'}"
    return Case(world_size=0, args=lambda rank: (psi, precision, world_size, list(cut)), about=about)


RANK_BYTES = Exercise(
    name="memory.rank_bytes",
    title="What is left when copies go",
    task="Return a dict with the bytes of each part, as `training_bytes` does, on the rank that holds most. Of the "
    "parts named in `cut`, the ranks share the psi elements among them as evenly as they can; an element is never "
    "split. Of the other parts, every rank holds the whole.",
    stub=stubs.rank_bytes,
    reference=rank_bytes,
    draw=draw,
    variants={"replaces": overwrites_the_whole, "by-element": element_by_element},
    mistakes=[
        Mistake(
            id="remainder-dropped",
            solution=with_share(lambda psi, ranks: psi // ranks),
            told="`psi // world_size` drops the remainder: so many elements belong to no rank. Someone has to hold "
            "them, and the rank that holds most has one more.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="one-more-always",
            solution=with_share(lambda psi, ranks: psi // ranks + 1),
            told="The largest share gets one element more even where psi divides evenly.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="bytes-divided",
            solution=with_bytes(lambda nbytes, ranks: nbytes // ranks),
            told="You divide bytes, and drop what is left over. An element is never split: share the elements first, "
            "then multiply by their bytes.",
            action="Compute the largest share of elements, rounded up, then its bytes.",
        ),
        Mistake(
            id="bytes-divided-up",
            solution=with_bytes(lambda nbytes, ranks: -(-nbytes // ranks)),
            told="You divide bytes and round up, which can split an element. Share the elements first.",
            action="Compute the largest share of elements, rounded up, then its bytes.",
        ),
        Mistake(
            id="broken-elements",
            solution=with_bytes(lambda nbytes, ranks: nbytes / ranks),
            told="`/` gives each rank a fraction of an element where psi does not divide.",
            action="Share the elements first, rounded up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="cuts-everything",
            solution=with_cut(lambda cut: PARTS),
            told="Every part is cut. Only those in `cut` are; of the others each rank holds the whole.",
            action="Ask for each part whether it is in `cut`.",
        ),
        Mistake(
            id="cuts-nothing",
            solution=with_cut(lambda cut: []),
            told="Nothing is cut: this is what a rank holds in plain data parallel.",
            action="Give the parts in `cut` the bytes of a share.",
        ),
        Mistake(
            id="cuts-the-others",
            solution=with_cut(lambda cut: set(PARTS) - set(cut)),
            told="The parts in `cut` are whole, and the others are cut.",
            action="Swap the two.",
        ),
        Mistake(
            id="masters-stay-whole",
            solution=with_cut(lambda cut: set(cut) - {"master weights"}),
            told="The master weights stay whole. The optimizer works on them as on the moments, so they are shared as "
            "well: 12 bytes of each parameter, not 8.",
            action='Treat "master weights" like every other part.',
        ),
        Mistake(
            id="always-halves",
            solution=with_share(lambda psi, ranks: -(-psi // 2)),
            told="What is cut is halved, however many ranks there are.",
            action="Divide by `world_size`.",
        ),
        Mistake(
            id="divides-twice",
            solution=with_share(lambda psi, ranks: -(-psi // ranks**2)),
            told="The share is divided by the number of ranks a second time.",
            action="Divide once.",
        ),
        Mistake(
            id="one-rank-less",
            solution=with_share(lambda psi, ranks: -(-psi // max(ranks - 1, 1))),
            told="You share among one rank less than there are. Rank 0 takes its share like the others.",
            action="Divide by `world_size`.",
        ),
        Mistake(
            id="only-what-is-cut",
            solution=only_what_is_cut,
            told="Parts that are not cut are missing. The rank holds them as well, whole.",
            action="Go through all parts, not through those in `cut`.",
        ),
        Mistake(
            id="zero-what-is-cut",
            solution=with_share(lambda psi, ranks: 0),
            told="Of what is cut the rank holds nothing. It holds its share.",
            action="Give these parts the bytes of the largest share.",
        ),
        Mistake(
            id="what-is-saved",
            solution=what_is_saved,
            told="This is what a rank saves. Asked is what it still holds.",
            action="Return the bytes of the share, and not what is left without it.",
        ),
        Mistake(
            id="always-fp32",
            solution=lambda psi, precision, world_size, cut: rank_bytes(psi, "fp32", world_size, cut),
            told="The precision that was given is not used: everything is counted in fp32.",
            action="Pass `precision` on to `training_bytes`.",
        ),
        Mistake(
            id="elements",
            solution=elements,
            told="These are numbers of elements, and not bytes.",
            action="Let `training_bytes` weigh them: it takes a number of elements.",
        ),
        Mistake(
            id="rounded",
            solution=with_share(lambda psi, ranks: round(psi / ranks)),
            told="The share is rounded to the nearest whole number. Where that is down, elements belong to nobody.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="remainder-on-one-rank",
            solution=with_share(lambda psi, ranks: psi // ranks + psi % ranks),
            told="One rank takes the whole remainder. To share as evenly as can be, each rank takes at most one of the "
            "elements that are left over.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="any-cut-cuts-all",
            solution=with_cut(lambda cut: PARTS if cut else []),
            told="As soon as anything is cut, every part is. `if cut` asks whether the list has anything in it.",
            action="Ask for each part: `if part in cut`.",
        ),
        Mistake(
            id="what-others-hold",
            solution=with_share(lambda psi, ranks: psi - -(-psi // ranks)),
            told="Of what is cut, you return what the *other* ranks hold. A rank holds its own share.",
            action="Weigh the share itself, and do not take it away from the whole.",
        ),
        Mistake(
            id="all-ranks-together",
            solution=all_ranks_together,
            told="This is what all ranks hold together. Asked is one of them, the fullest.",
            action="Leave out the factor `world_size`.",
        ),
        Mistake(
            id="only-the-total",
            solution=lambda *args: sum(rank_bytes(*args).values()),
            told="The sum of all parts is returned. Asked is how much each of them is.",
            action="Return the dict.",
        ),
    ],
    hints=[
        "How many elements of a part that is cut does the fullest rank hold? How many of a part that is not?",
        "The share is psi divided by the number of ranks, rounded up. A share is like a smaller model: "
        "`training_bytes` weighs it.",
        "`training_bytes(share, precision)`, and `-(-a // b)`, which divides whole numbers and rounds up.",
        "```python\nshare = ...\nwhole, shard = training_bytes(psi, precision), training_bytes(..., precision)\n"
        "return {part: ... if part in cut else ... for part in whole}\n```",
    ],
    explanation="A shard is a model with fewer parameters, so one calculator weighs both. Elements are shared, not "
    "bytes, and the fullest rank has the remainder's extra element: it decides whether the model fits. Cutting the "
    "optimizer's three parts is ZeRO stage 1, the gradients too stage 2, the parameters too stage 3.",
)
