"""Pipeline schedules: in what order a rank goes forward and backward through its parts, for which micro-batches.

    part          some consecutive blocks of the model; parts are numbered from the embedding to the head
    micro-batch   one of the equal pieces of a batch that follow each other through the parts
    bubble        the time in which a rank waits for the first micro-batch to arrive or the last to come back

With P ranks and M micro-batches of equal duration a rank idles (P - 1)/(M + P - 1) of the time. So it does in GPipe
(Huang et al. 2019), which goes forward with all micro-batches first, and keeps the activations of M of them, not of P.
"""

from typing import Literal, NamedTuple


class Action(NamedTuple):
    """One step of a rank's schedule.

    Attributes:
        kind: which pass.
        part: the number of the part of the model, among the parts of all ranks.
        micro_batch: its number.
    """

    kind: Literal["forward", "backward"]
    part: int
    micro_batch: int


def one_forward_one_backward(rank: int, world_size: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """Return the schedule of PipeDream-Flush (Narayanan et al. 2021), called 1F1B.

    A rank first goes forward until the first backward can reach it. From then on it alternates, so that it keeps the
    activations of at most as many micro-batches as there are ranks from it to the last.

    Args:
        rank, world_size: this rank among the ranks of the pipeline.
        micro_batches: their number, M.
        chunks: the parts that each rank has. With more than one the schedule is interleaved: rank r has the parts r,
            r + world_size, ...; the bubble shrinks to 1/chunks, and more is sent.

    Raises:
        ValueError: with chunks, the number of ranks does not divide the number of micro-batches.
    """
    if chunks > 1 and micro_batches % world_size:
        raise ValueError(
            f"{micro_batches} micro-batches cannot be interleaved over {world_size} ranks. Choose a multiple of the "
            "number of ranks."
        )
    total = micro_batches * chunks
    ahead = world_size - rank - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * world_size
    ahead = min(ahead, total)
    forward = [_action("forward", k, rank, world_size, chunks) for k in range(total)]
    backward = [_action("backward", k, rank, world_size, chunks) for k in range(total)]
    alternating = [action for pair in zip(forward[ahead:], backward, strict=False) for action in pair]
    return [*forward[:ahead], *alternating, *backward[total - ahead :]]


def _action(kind: Literal["forward", "backward"], k: int, rank: int, world_size: int, chunks: int) -> Action:
    """Return a rank's k-th forward or backward: `world_size` micro-batches in one chunk, then the same in the next."""
    if chunks == 1:
        return Action(kind, rank, k)
    round_, within = divmod(k, world_size * chunks)
    chunk, number = divmod(within, world_size)
    chunk = chunk if kind == "forward" else chunks - 1 - chunk
    return Action(kind, chunk * world_size + rank, round_ * world_size + number)
