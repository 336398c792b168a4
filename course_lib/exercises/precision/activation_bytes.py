"""What one transformer layer keeps from forward to backward: the formula of Korthikanti et al. 2022."""

from __future__ import annotations

import random

from ..declare import Case, Exercise, Mistake
from . import stubs


def activation_bytes(sequence: int, batch: int, hidden: int, heads: int, dropout: bool, checkpointing: str) -> int:
    """Return the bytes that one transformer layer keeps for backward, computed in 16 bits."""
    stream = sequence * batch * hidden  # elements of the layer's input
    scores = heads * sequence * sequence * batch
    if checkpointing == "full":
        return 2 * stream
    kept = (34 if dropout else 32) * stream
    if checkpointing == "selective":
        return kept
    return kept + (5 if dropout else 2) * scores


Answer = int | float


def formula(
    sequence: int, batch: int, hidden: int, heads: int, dropout: bool, checkpointing: str,
    *, wide: tuple[int, int] = (34, 32), square: tuple[int, int] = (5, 2), full: int = 2,
) -> int:  # fmt: skip
    """The formula with other coefficients, each with dropout and without."""
    stream, scores = sequence * batch * hidden, heads * sequence * sequence * batch
    if checkpointing == "full":
        return full * stream
    kept = wide[not dropout] * stream
    return kept if checkpointing == "selective" else kept + square[not dropout] * scores


def no_scores(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, square=(0, 0))


def linear_scores(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    scores = formula(s, b, h, a, dropout, "none") - formula(s, b, h, a, dropout, "selective")
    return formula(s, b, h, a, dropout, checkpointing) - (scores - scores // s) * (checkpointing == "none")


def one_head(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, 1, dropout, checkpointing)


def scores_as_wide_as_hidden(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, h, dropout, checkpointing)


def one_sequence(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, 1, h, a, dropout, checkpointing)


def batch_squared(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    scores = formula(s, b, h, a, dropout, "none") - formula(s, b, h, a, dropout, "selective")
    return formula(s, b, h, a, dropout, checkpointing) + (b - 1) * scores * (checkpointing == "none")


def wide_masks(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(36, 32), square=(6, 2))


def always_dropout(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, True, checkpointing)


def never_dropout(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, False, checkpointing)


def always_the_whole(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, True, "none")


def only_masks_of_scores(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, square=(3, 2))


def in_fp32(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(66, 64), square=(9, 4), full=4)


def elements(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(18, 16), square=(3, 1), full=1)


def full_keeps_nothing(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, full=0)


def selective_as_full(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, "none" if checkpointing == "none" else "full")


def selective_as_none(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, "full" if checkpointing == "full" else "none")


def selective_drops_all_masks(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout and checkpointing == "none", checkpointing)


def norms_forgotten(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(30, 28))


def one_product(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(26, 24))


def values_forgotten(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing, wide=(32, 30))


def megabytes(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> Answer:
    return formula(s, b, h, a, dropout, checkpointing) / 10**6


def item_by_item(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> int:
    token = 2 * s * b * h
    if checkpointing == "full":
        return token
    items = [2 * token, token, 3 * token, token, token, 8 * token]  # norms, in, q k v, projection, up, inside
    if dropout:
        items += [s * b * h, s * b * h]
    if checkpointing == "none":
        probabilities = 2 * a * b * s**2
        items += [probabilities] + ([probabilities, probabilities // 2] if dropout else [])
    return sum(items)


def as_in_the_paper(s: int, b: int, h: int, a: int, dropout: bool, checkpointing: str) -> int:
    match checkpointing, dropout:
        case "full", _:
            return 2 * s * b * h
        case "selective", True:
            return 34 * s * b * h
        case "selective", False:
            return 32 * s * b * h
        case _, True:
            return s * b * (34 * h + 5 * a * s)
    return s * b * (32 * h + 2 * a * s)


def draw(rng: random.Random, number: int) -> Case:
    sequence, batch, heads = 32 * rng.randint(2, 9), rng.randint(2, 7), rng.choice((2, 4, 8))
    hidden, dropout = heads * 16 * rng.randint(1, 5), number % 2 == 0
    checkpointing = ("none", "none", "selective", "selective", "full")[number % 5]
    about = f"s {sequence}, b {batch}, h {hidden}, a {heads}, with{'' if dropout else 'out'} dropout, {checkpointing}"
    return Case(world_size=0, args=lambda rank: (sequence, batch, hidden, heads, dropout, checkpointing), about=about)


ACTIVATION_BYTES = Exercise(
    name="precision.activation_bytes",
    title="The bytes of a layer",
    task='Add up the table above, in bytes, for one layer: all of it for `checkpointing` "none", all but the '
    'attention core for "selective", and the input of the layer alone for "full". The rows of dropout count where '
    "`dropout` is true. A mask has 1 byte for each element, everything else 2.",
    stub=stubs.activation_bytes,
    reference=activation_bytes,
    draw=draw,
    case_count=8,
    variants={"item-by-item": item_by_item, "as-in-the-paper": as_in_the_paper},
    mistakes=[
        Mistake(
            id="no-scores",
            solution=no_scores,
            told="The attention core is missing: the probabilities of each token for each other, in every head. For "
            "long sequences they are most of all.",
            action='Add the rows of the attention core for "none".',
        ),
        Mistake(
            id="linear-scores",
            solution=linear_scores,
            told="The attention core grows with s in your formula, and really with s²: every token has a score for "
            "every other.",
            action="Count `heads * sequence**2 * batch` elements.",
        ),
        Mistake(
            id="one-head",
            solution=one_head,
            told="You count the scores of one head. Each head has its own.",
            action="Multiply the attention core by `heads`.",
        ),
        Mistake(
            id="scores-as-wide-as-hidden",
            solution=scores_as_wide_as_hidden,
            told="You count h numbers for each pair of tokens. There is one for each head.",
            action="Multiply by `heads` there, and not by `hidden`.",
        ),
        Mistake(
            id="one-sequence",
            solution=one_sequence,
            told="You count one sequence, and there are `batch` of them.",
            action="Multiply everything by `batch`.",
        ),
        Mistake(
            id="batch-squared",
            solution=batch_squared,
            told="The attention core has batch² in your formula. Tokens attend to those of their own sequence alone.",
            action="Count `heads * sequence**2 * batch` elements.",
        ),
        Mistake(
            id="wide-masks",
            solution=wide_masks,
            told="Your masks have 2 bytes for each element. A mask says yes or no, and takes 1.",
            action="Count 1 byte for each element of a mask.",
        ),
        Mistake(
            id="always-dropout",
            solution=always_dropout,
            told="You count the rows of dropout where there is none, too.",
            action="Without dropout there are no masks, and probabilities are kept once.",
        ),
        Mistake(
            id="never-dropout",
            solution=never_dropout,
            told="The rows of dropout are missing.",
            action="Add them where `dropout` is true.",
        ),
        Mistake(
            id="always-the-whole",
            solution=always_the_whole,
            told="That is the paper's formula for a layer with dropout that keeps everything, whatever is asked.",
            action="Let `dropout` and `checkpointing` decide which rows count.",
        ),
        Mistake(
            id="only-masks-of-scores",
            solution=only_masks_of_scores,
            told="Of the dropout of probabilities you count the mask alone. Its output is kept as well: it is what "
            "multiplies the values.",
            action="Count 2 bytes of probabilities, 1 of mask and 2 of output for each score.",
        ),
        Mistake(
            id="in-fp32",
            solution=in_fp32,
            told="You count 4 bytes for each number. Computed in 16 bits, it has 2.",
            action="Count 2 bytes, and 1 for masks.",
        ),
        Mistake(
            id="elements",
            solution=elements,
            told="These are numbers of elements.",
            action="Count 2 bytes for each, and 1 for masks.",
        ),
        Mistake(
            id="full-keeps-nothing",
            solution=full_keeps_nothing,
            told="With full checkpointing nothing is kept at all. Then nothing could be computed again: it has to "
            "begin with the layer's input.",
            action="Keep the input: 2 bytes for each of its elements.",
        ),
        Mistake(
            id="selective-as-full",
            solution=selective_as_full,
            told='"selective" comes out as "full". It computes the attention core again, and keeps all else.',
            action="Leave out the rows of the attention core alone.",
        ),
        Mistake(
            id="selective-as-none",
            solution=selective_as_none,
            told='"selective" comes out as "none". It does not keep the attention core.',
            action="Leave out the rows of the attention core.",
        ),
        Mistake(
            id="selective-drops-all-masks",
            solution=selective_drops_all_masks,
            told='"selective" leaves out all masks. It leaves out that of the attention core; the two others, of width '
            "h, are kept.",
            action="Keep the two masks that do not belong to the attention core.",
        ),
        Mistake(
            id="norms-forgotten",
            solution=norms_forgotten,
            told="The inputs of the two norms are missing.",
            action="Add 2 bytes for each element of each.",
        ),
        Mistake(
            id="one-product",
            solution=one_product,
            told="Inside the feed-forward layer you count one tensor of width 4h. Two are kept: before and behind the "
            "activation function.",
            action="Count both, 4h wide.",
        ),
        Mistake(
            id="values-forgotten",
            solution=values_forgotten,
            told="One of queries, keys and values is missing. Backward needs all three.",
            action="Count three tensors of width h.",
        ),
        Mistake(
            id="megabytes",
            solution=megabytes,
            told="These are MB. The function gives bytes; units are for those who print them.",
            action="Leave out the division.",
        ),
    ],
    hints=[
        "How many elements has the input of the layer? How many scores are there, over all heads and sequences?",
        "Two kinds of things are kept: some as large as the input, or four times that; and some with an element for "
        "each pair of tokens, in each head. Add up each kind by itself.",
        "s·b·h elements: 34 bytes for each with dropout, 32 without. a·s²·b scores: 5 bytes for each, or 2.",
        '```python\nstream = sequence * batch * hidden\nscores = ...\nif checkpointing == "full":\n    return ...\n'
        "kept = (34 if dropout else ...) * stream\n...\n```",
    ],
    explanation="With dropout: s·b·h·(34 + 5·a·s/h) bytes for each layer, formula 2 of Korthikanti et al. "
    "(arXiv:2205.05198); 34·s·b·h where the attention core is computed again, and 2·s·b·h where all is. Nothing in it "
    "depends on the number of ranks. Nothing in it is a parameter, either: it grows with the batch and with the "
    "sequence, and its second term with the square of the sequence.",
)
