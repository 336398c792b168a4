"""The step of a loop at which ranks first differ, by the whole numbers that a `World(replay=True)` keeps."""

from collections.abc import Mapping, Sequence

from ...errors import grouped, who
from ..collectives.call import Call


def first_step(calls: Mapping[int, Sequence[Call]]) -> str:
    """Return the end of a sentence about the first values of a variable that was equal on all ranks until then: `. The
    first call in different steps: rank 0 with i = 3; rank 1 with i = 4`. Return nothing if there is none.

    `calls` belong together, by rank and in order.
    """
    equal: set[str] | None = None
    for together in zip(*calls.values(), strict=False):
        counters = [dict(call.values.counters) if call.values is not None else {} for call in together]
        names = set.intersection(*map(set, counters))
        differ = {name for name in names if len({one[name] for one in counters}) > 1}
        for name in sorted(differ & (equal or set())):
            texts = {rank: f"with {name} = {one[name][0]}" for rank, one in zip(calls, counters, strict=True)}
            steps = "; ".join(f"{who(ranks)} {text}" for ranks, text in grouped(texts))
            return f". The first call in different steps: {steps}"
        equal = names - differ if equal is None else equal & names - differ
    return ""
