"""Parameters that differ after ranks have stepped with the same gradients: first weights that differ, or a step that a
rank skipped. Sharded parameters have gradients of their own, and are never compared."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ...errors import grouped, who
from ...meter import MemoryReport, OptimizerSteps
from ..collectives.call import Call
from .rank_error import quoted

Side = dict[int, OptimizerSteps]
"""The same optimizer on each rank."""


def drift_warnings(calls: Sequence[Sequence[Call]], memory: Sequence[MemoryReport]) -> Iterator[str]:
    """Yield a line on the first step after which the parameters of ranks differ, if gradients are equal because ranks
    have reduced them. `calls` are by rank."""
    sides: defaultdict[object, Side] = defaultdict(dict)
    for report in memory:
        count: Counter[object] = Counter()
        for one in report.optimizers:
            count[one.line] += 1
            sides[one.line, count[one.line]][report.rank] = one
    for side in sides.values():
        if found := _first_difference(side, calls):
            yield _message(side, *found)
            return


def _first_difference(side: Side, calls: Sequence[Sequence[Call]]) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the parameters' checksums of ranks, and how many steps each has made before; None if all are equal."""
    by_gradients: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for rank, optimizer in side.items():
        for number, step in enumerate(optimizer.steps):
            if step.gradients:
                by_gradients[step.gradients].setdefault(rank, number)
    for numbers in by_gradients.values():
        parameters = {rank: side[rank].steps[number].parameters for rank, number in numbers.items()}
        if len(set(parameters.values())) > 1 and all(
            _has_reduced(calls[rank], side[rank], number, numbers.keys()) for rank, number in numbers.items()
        ):
            return parameters, numbers
    return None


def _has_reduced(theirs: Sequence[Call], optimizer: OptimizerSteps, number: int, ranks: Iterable[int]) -> bool:
    """Return whether a rank has exchanged as many numbers with `ranks` as it has gradients, since its step before."""
    after, until = optimizer.steps[number - 1].seconds if number else 0.0, optimizer.steps[number].seconds
    exchanged = sum(
        call.total_bytes // call.dtype.itemsize
        for call in theirs
        if call.dtype and after < call.issued <= until and set(ranks) <= set(call.ranks)
    )
    return exchanged >= optimizer.numel


def _message(side: Side, parameters: dict[int, int], numbers: dict[int, int]) -> str:
    shown = grouped(parameters)
    fewest = min(shown, key=lambda item: (len(item[0]), numbers[item[0][0]]))[0]
    line = next(iter(side.values())).line
    text = (
        f"parameters differ ({' | '.join(who(ranks) for ranks, _ in shown)}) after step {numbers[fewest[0]] + 1} of "
        f"{who(fewest)}{(line and f' at {quoted(line)}') or ''}. These ranks stepped with the same gradients, so their "
        "parameters must be equal. "
    )
    if len(set(numbers.values())) > 1:
        made = "; ".join(f"{who(ranks)}: {number}" for ranks, number in grouped(numbers))
        return (
            f"{text}Before it, they had made different numbers of steps ({made}). Next: let every rank step each time, "
            "or none: decide it by a value that all ranks have."
        )
    if not any(numbers.values()):
        return (
            f"{text}They differ from the first step on. Next: start every rank with the same weights (the same seed or "
            "checkpoint, a broadcast from rank 0, or DistributedDataParallel) and the same learning rate."
        )
    return (
        f"{text}They were equal before it. Next: look for what changes parameters or the optimizer's settings only on "
        f"{who(fewest)}."
    )
