"""What one rank holds when the ranks share some parts among them."""

from __future__ import annotations

import random

from ..declare import Case, Exercise, Mistake
from . import stubs
from .mixed_precision import PRECISIONS, training_bytes

MOMENTS = ["momentum", "variance"]
OPTIMIZER = ["master weights", *MOMENTS]
GRADIENTS = ["gradients", "fp32 gradients"]
CUTS: tuple[list[str], ...] = (
    OPTIMIZER,
    OPTIMIZER + GRADIENTS,
    [*OPTIMIZER, *GRADIENTS, "parameters"],
    [],
    ["parameters"],
    MOMENTS,
)


def rank_bytes(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    """Return the bytes of each part of the model states on the rank that holds most."""
    largest_share = -(-psi // world_size)  # rounded up
    whole, shard = training_bytes(psi, precision), training_bytes(largest_share, precision)
    return {part: shard[part] if part in cut else whole[part] for part in whole}


def with_share(psi: int, precision: str, share: int, cut: list[str]) -> dict[str, int]:
    """As `rank_bytes`, where a rank has so many elements of what is cut."""
    whole, shard = training_bytes(psi, precision), training_bytes(share, precision)
    return {part: (shard if part in cut else whole)[part] for part in whole}


def remainder_dropped(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, psi // world_size, cut)


def one_more_always(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, psi // world_size + 1, cut)


def bytes_divided(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    whole = training_bytes(psi, precision)
    return {part: nbytes // world_size if part in cut else nbytes for part, nbytes in whole.items()}


def bytes_divided_up(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    whole = training_bytes(psi, precision)
    return {part: -(-nbytes // world_size) if part in cut else nbytes for part, nbytes in whole.items()}


def broken_elements(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, float]:
    whole = training_bytes(psi, precision)
    return {part: nbytes / world_size if part in cut else nbytes for part, nbytes in whole.items()}


def cuts_everything(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return training_bytes(-(-psi // world_size), precision)


def cuts_nothing(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return training_bytes(psi, precision)


def cuts_the_others(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    whole, shard = training_bytes(psi, precision), training_bytes(-(-psi // world_size), precision)
    return {part: whole[part] if part in cut else shard[part] for part in whole}


def masters_stay_whole(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return rank_bytes(psi, precision, world_size, [part for part in cut if part != "master weights"])


def always_halves(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, -(-psi // 2), cut)


def divides_twice(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, -(-psi // world_size**2), cut)


def one_rank_less(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, -(-psi // max(world_size - 1, 1)), cut)


def only_what_is_cut(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    shard = training_bytes(-(-psi // world_size), precision)
    return {part: nbytes for part, nbytes in shard.items() if part in cut}


def zero_what_is_cut(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return {part: 0 if part in cut else nbytes for part, nbytes in training_bytes(psi, precision).items()}


def what_is_saved(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    held = rank_bytes(psi, precision, world_size, cut)
    return {part: nbytes - held[part] for part, nbytes in training_bytes(psi, precision).items()}


def always_fp32(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return rank_bytes(psi, "fp32", world_size, cut)


def only_the_total(psi: int, precision: str, world_size: int, cut: list[str]) -> int:
    return sum(rank_bytes(psi, precision, world_size, cut).values())


def elements(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return {part: -(-psi // world_size) if part in cut else psi for part in training_bytes(psi, precision)}


def rounded(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, round(psi / world_size), cut)


def remainder_on_one_rank(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, psi // world_size + psi % world_size, cut)


def any_cut_cuts_all(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return training_bytes(-(-psi // world_size) if cut else psi, precision)


def what_others_hold(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    return with_share(psi, precision, psi - -(-psi // world_size), cut)


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
            solution=remainder_dropped,
            told="`psi // world_size` drops the remainder: so many elements belong to no rank. Someone has to hold "
            "them, and the rank that holds most has one more.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="one-more-always",
            solution=one_more_always,
            told="The largest share gets one element more even where psi divides evenly.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="bytes-divided",
            solution=bytes_divided,
            told="You divide bytes, and drop what is left over. An element is never split: share the elements first, "
            "then multiply by their bytes.",
            action="Compute the largest share of elements, rounded up, then its bytes.",
        ),
        Mistake(
            id="bytes-divided-up",
            solution=bytes_divided_up,
            told="You divide bytes and round up, which can split an element. Share the elements first.",
            action="Compute the largest share of elements, rounded up, then its bytes.",
        ),
        Mistake(
            id="broken-elements",
            solution=broken_elements,
            told="`/` gives each rank a fraction of an element where psi does not divide.",
            action="Share the elements first, rounded up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="cuts-everything",
            solution=cuts_everything,
            told="Every part is cut. Only those in `cut` are; of the others each rank holds the whole.",
            action="Ask for each part whether it is in `cut`.",
        ),
        Mistake(
            id="cuts-nothing",
            solution=cuts_nothing,
            told="Nothing is cut: this is what a rank holds in plain data parallel.",
            action="Give the parts in `cut` the bytes of a share.",
        ),
        Mistake(
            id="cuts-the-others",
            solution=cuts_the_others,
            told="The parts in `cut` are whole, and the others are cut.",
            action="Swap the two.",
        ),
        Mistake(
            id="masters-stay-whole",
            solution=masters_stay_whole,
            told="The master weights stay whole. The optimizer works on them as on the moments, so they are shared as "
            "well: 12 bytes of each parameter, not 8.",
            action='Treat "master weights" like every other part.',
        ),
        Mistake(
            id="always-halves",
            solution=always_halves,
            told="What is cut is halved, however many ranks there are.",
            action="Divide by `world_size`.",
        ),
        Mistake(
            id="divides-twice",
            solution=divides_twice,
            told="The share is divided by the number of ranks a second time.",
            action="Divide once.",
        ),
        Mistake(
            id="one-rank-less",
            solution=one_rank_less,
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
            solution=zero_what_is_cut,
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
            solution=always_fp32,
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
            solution=rounded,
            told="The share is rounded to the nearest whole number. Where that is down, elements belong to nobody.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="remainder-on-one-rank",
            solution=remainder_on_one_rank,
            told="One rank takes the whole remainder. To share as evenly as can be, each rank takes at most one of the "
            "elements that are left over.",
            action="Round up: `-(-psi // world_size)`.",
        ),
        Mistake(
            id="any-cut-cuts-all",
            solution=any_cut_cuts_all,
            told="As soon as anything is cut, every part is. `if cut` asks whether the list has anything in it.",
            action="Ask for each part: `if part in cut`.",
        ),
        Mistake(
            id="what-others-hold",
            solution=what_others_hold,
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
            solution=only_the_total,
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
