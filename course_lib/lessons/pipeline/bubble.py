"""The bubble of a pipeline."""

import random

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    sizes = ((4, 8, 1), (4, 8, 2), (1, 4, 1), (8, 8, 4), (16, 32, 1), (8, 64, 5))
    world_size, micro_batches, chunks = sizes[number % 6]
    what = f"world size {world_size}, {micro_batches} micro-batches, chunks = {chunks}"
    return Case(world_size=0, args=lambda rank: (world_size, micro_batches, chunks), what=what)


exercise = Exercise("pipeline.bubble", title="The bubble", draw=draw, task="""
    Return the share of a step, from 0 to 1, in which a rank waits. All micro-batches and all parts take equally long.
    Each rank has `chunks` parts. Then a micro-batch takes 1/chunks of a rank's time to pass one part, and the first
    micro-batch reaches the last rank sooner.
    """, hints="""
    Draw three ranks and four micro-batches, with one part each. How long does the last rank wait before its first
    forward? And after its last backward?

    Take the time of a micro-batch on a rank, forward and backward, as 1. A rank works for M. It waits for P − 1 in all,
    whichever rank it is. With V parts of 1/V each, it waits for (P − 1)/V.

    The share is waiting over waiting and working.

    Multiply both by V: the waiting is P − 1 then. What is the work?
    """, explanation="""
    (P − 1)/V of waiting and M of work give (P − 1)/(V·M + P − 1) (Narayanan et al. 2021, section 2.2, who divide
    by only the working time). The number of micro-batches makes the bubble small; the schedule does not, except that
    interleaving divides the waiting by V. A rank in the middle then sends V times as much.
    """)


@exercise
def bubble(world_size: int, micro_batches: int, chunks: int) -> float:
    """Return the share of a step, from 0 to 1, in which a rank of a pipeline waits.

    Each of `world_size` ranks has `chunks` parts of the model, all of which take equally long.
    """
    return (world_size - 1) / (chunks * micro_batches + world_size - 1)


exercise.edit("over-the-work", {"(chunks * micro_batches + world_size - 1)": "(chunks * micro_batches)"}, """
    You divide the waiting by the working time. Papers give the bubble in this way as well, but the task asks for the
    share of the whole step. Next: divide by working and waiting together.
    """)

exercise.edit("without-chunks", {"chunks * micro_batches": "micro_batches"}, """
    Your result does not depend on the number of chunks. With V chunks, each part takes 1/V of the time, so the first
    micro-batch is on the last rank V times sooner. Next: divide the waiting time by `chunks`.
    """)

exercise.edit("all-ranks-wait", {"(world_size - 1) / (chunks * micro_batches + world_size - 1)":
    "world_size / (chunks * micro_batches + world_size)"}, """
    You count one rank too many. A rank waits for the other ranks, not for itself: with one rank there is no bubble.
    Next: count the other ranks.
    """)

exercise.edit("of-the-last-rank-only", {"(world_size - 1) / (chunks * micro_batches + world_size - 1)":
    "(world_size - 1) / (chunks * micro_batches + world_size)"}, """
    Your step is too long by one micro-batch: it has `chunks * micro_batches` pieces of work and `world_size - 1` of
    waiting. Next: write down, for two ranks, the pieces of a whole step in which one rank works and waits.
    """)

exercise.edit("in-percent", {"return (world_size - 1)": "return 100 * (world_size - 1)"}, """
    You return percent. The task asks for a share from 0 to 1. Next: leave out the factor of 100.
    """)

exercise.edit("one-micro-batch", {"chunks * micro_batches + world_size - 1": "world_size"}, """
    That is the bubble of one micro-batch, where one rank works at a time. Further micro-batches follow at once.
    Next: add the work of all micro-batches in the denominator.
    """)

exercise.edit("chunks-lengthen-it", {"(world_size - 1) / (chunks * micro_batches + world_size - 1)":
    "chunks * (world_size - 1) / (micro_batches + chunks * (world_size - 1))"}, """
    In your formula more chunks make the bubble larger. A part is 1/chunks as long, so the next rank starts sooner.
    Next: divide the waiting time by `chunks` instead of multiplying it.
    """)

exercise.edit("chunks-multiply-the-waiting", {"(chunks * micro_batches + world_size - 1)":
    "(micro_batches + chunks * (world_size - 1))"}, """
    `chunks` multiplies the waiting in your step, not the work. Measured in the time of one part, a rank works for
    `chunks` parts of each micro-batch. The waiting is one part for each other rank. Next: decide which of the two
    `chunks` makes longer, in parts.
    """)

exercise.edit("chunks-as-ranks", {"(world_size - 1) / (chunks * micro_batches + world_size - 1)":
    "(chunks * world_size - 1) / (micro_batches + chunks * world_size - 1)"}, """
    You count each part as a rank of its own. A rank with several parts works on one while a different rank works on
    the next, so it waits only for the other ranks. Next: count ranks in the waiting, and parts in the work.
    """)

exercise.variant_edit("one-minus-work", {"(world_size - 1) / (chunks * micro_batches + world_size - 1)":
    "1 - chunks * micro_batches / (chunks * micro_batches + world_size - 1)"})


@exercise.variant
def in_units_of_a_micro_batch(world_size: int, micro_batches: int, chunks: int) -> float:
    waits = (world_size - 1) / chunks
    return waits / (waits + micro_batches)
