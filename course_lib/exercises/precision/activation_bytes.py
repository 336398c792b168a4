"""What one transformer layer keeps from forward to backward: the formula of Korthikanti et al. 2022."""

from __future__ import annotations

import random

from ..form.exercise import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    sequence, batch, heads = 32 * rng.randint(2, 9), rng.randint(2, 7), rng.choice((2, 4, 8))
    hidden, dropout = heads * 16 * rng.randint(1, 5), number % 2 == 0
    checkpointing = ("none", "none", "selective", "selective", "full")[number % 5]
    about = f"s {sequence}, b {batch}, h {hidden}, a {heads}, with{'' if dropout else 'out'} dropout, {checkpointing}"
    return Case(world_size=0, args=lambda rank: (sequence, batch, hidden, heads, dropout, checkpointing), about=about)


exercise = Exercise("precision.activation_bytes", title="The bytes of a layer", draw=draw, case_count=8, task="""
    Add up the table above, in bytes, for one layer. `checkpointing` decides which rows count: "none" counts all rows,
    "selective" all rows except the attention core, and "full" only the input of the layer. The column "with dropout
    also" counts if `dropout` is true. An element of a mask takes 1 byte, every other element 2.
    """, hints="""
    How many elements does the input of the layer have? How many scores are there, over all heads and sequences?

    A layer keeps two kinds of tensors. The first kind is as large as the input, or four times as large. The second kind
    has an element for each pair of tokens in each head. Add up each kind separately.

    s·b·h elements: 34 bytes for each with dropout, 32 without. a·s²·b scores: 5 bytes for each with dropout, 2 without.

    ```python
    stream = sequence * batch * hidden
    scores = ...
    if checkpointing == "full":
        return ...
    kept = (34 if dropout else ...) * stream
    ...
    ```
    """, explanation="""
    With dropout, a layer keeps s·b·h·(34 + 5·a·s/h) bytes: formula 2 of Korthikanti et al. (arXiv:2205.05198). It keeps
    34·s·b·h bytes if the attention core is computed again, and 2·s·b·h if the whole layer is. The number of ranks does
    not appear in the formula, nor does the number of parameters. The bytes grow with the batch and with the sequence,
    and the second term grows with the square of the sequence.
    """)


@exercise
def activation_bytes(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    dropout: bool,
    checkpointing: str,
) -> int:
    """Return the bytes that one transformer layer keeps for backward, computed in 16 bits.

    `checkpointing` is "none", "selective" (scores are computed again) or "full" (the whole layer is).
    """
    stream = sequence * batch * hidden  # elements of the layer's input
    scores = heads * sequence * sequence * batch
    if checkpointing == "full":
        return 2 * stream
    kept = (34 if dropout else 32) * stream
    if checkpointing == "selective":
        return kept
    return kept + (5 if dropout else 2) * scores


exercise.edit("no-scores", {" + (5 if dropout else 2) * scores": ""}, """
    The attention core is missing: the probabilities of each pair of tokens, in every head. For long sequences they take
    most of the memory. Next: add the row of the attention core for "none".
    """)

exercise.edit("linear-scores", {"sequence * sequence": "sequence"}, """
    In your formula the attention core grows with s. It grows with s², because every token has a score for every other
    token. Next: count `heads * sequence**2 * batch` scores.
    """)

exercise.edit("one-head", {"heads * ": ""}, """
    You count the scores of one head. Each head has its own scores. Next: multiply the attention core by `heads`.
    """)

exercise.edit("wide-masks", {"34": "36", "5 if": "6 if"}, """
    You count 2 bytes for each element of a mask. A mask holds yes or no, in 1 byte.
    Next: count 1 byte for each element of a mask.
    """)

exercise.edit("always-dropout", {"(34 if dropout else 32)": "34", "(5 if dropout else 2)": "5"}, """
    You count the column of dropout even if `dropout` is false. Without dropout a layer keeps no masks, and it keeps the
    probabilities once. Next: add the bytes of dropout only if `dropout` is true.
    """)

exercise.edit("never-dropout", {"(34 if dropout else 32)": "32", "(5 if dropout else 2)": "2"}, """
    You never count the column of dropout. Next: add its bytes if `dropout` is true.
    """)

exercise.edit("only-masks-of-scores", {"5 if": "3 if"}, """
    You count the mask of the attention core's dropout, and not its output. The layer keeps the output too, because it
    is multiplied by the values.
    Next: count 2 bytes of probabilities, 1 of mask and 2 of output for each score.
    """)

exercise.edit("in-fp32", {"return 2 *": "return 4 *", "34 if dropout else 32": "66 if dropout else 64",
    "5 if dropout else 2": "9 if dropout else 4"}, """
    You count 4 bytes for each number. The layer computes in 16 bits, so a number takes 2 bytes.
    Next: count 2 bytes for a number and 1 for an element of a mask.
    """)

exercise.edit("full-keeps-nothing", {"return 2 * stream": "return 0"}, """
    With "full" your layer keeps nothing. To compute the layer again, backward needs the layer's input.
    Next: count the input: 2 bytes for each of its elements.
    """)

exercise.edit("selective-as-full", {'"selective":\nreturn kept': '"selective":\n    return 2 * stream'}, """
    You return the same for "selective" as for "full". "selective" computes only the attention core again, and keeps
    everything else. Next: leave out only the row of the attention core.
    """)

exercise.edit("selective-drops-all-masks", {'"selective":\nreturn kept': '"selective":\n    return 32 * stream'}, """
    With "selective" you leave out all masks. Two masks, of width h, do not belong to the attention core.
    Next: keep these two masks: 2 more bytes for each element of the input, if `dropout` is true.
    """)

exercise.edit("one-product", {"34 if dropout else 32": "26 if dropout else 24"}, """
    You count one tensor of width 4h inside the feed-forward layer. The layer keeps two: the input and the output of the
    activation function. Next: count both.
    """)


@exercise.variant
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


@exercise.variant
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
