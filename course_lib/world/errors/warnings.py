"""Warnings of a run that went through: what is legal, and yet very likely wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf, isnan

from ...errors import grouped, who
from ...meter import MemoryReport, OptimizerSteps, SourceLine
from ..collectives.call import Call
from ..collectives.values import BEGINNING
from .rank_error import quoted

Found = list[tuple[int, Call]]
"""Calls, each with its rank."""


def unwaited(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line for each of the learner's lines that drops a Work or uses tensors too early. `calls` are by rank."""
    of_all = [(rank, call) for rank, theirs in enumerate(calls) for call in theirs]
    for line, found in _by_line((call.line, rank, call) for rank, call in of_all if call.open_handle):
        if found[0][1].op == "init_process_group":
            continue
        use = "change" if found[0][1].op == "send" else "use"
        yield (
            f"{_names(found, len(calls))} never waited for {_call(found)}{_more(found)} at {quoted(line)}. Without "
            f"the wait, the tensor may still be on its way when you {use} it. Next: keep what the call returns, and "
            f"call wait() on it before you {use} the tensor."
        )
    for line, found in _by_line((call.used_at, rank, call) for rank, call in of_all):
        yield (
            f"{_names(found, len(calls))} used a tensor of {_call(found)}{_more(found)} before its wait, at "
            f"{quoted(line)}. The tensor may still be on its way. Next: move that line behind the wait(), or give it a "
            "tensor of its own."
        )


def open_groups(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line for each line of a program that made the default group, if nothing has destroyed it."""
    of_all = [(call.line, rank, call) for rank, theirs in enumerate(calls) for call in theirs if call.open_handle]
    for line, found in _by_line(one for one in of_all if one[-1].op == "init_process_group"):
        yield (
            f"{_names(found, len(calls))} never destroyed the group made at {quoted(line)}. With NCCL, a rank that "
            "ends first can then fail the others. Next: end the program with dist.destroy_process_group()."
        )


def shared_variables(names: Sequence[str], world_size: int) -> list[str]:
    """Return a line about the variables of modules that a run has set, and that its ranks share; none without any."""
    if not names:
        return []
    them, restored = ("it", "it has its old value") if len(names) == 1 else ("them", "they have their old values")
    return [
        f"{who(range(world_size), world_size)} share {', '.join(names)}, and this run has set {them}: simulated ranks "
        f"import a module once, so each reads what was set last. After the run, {restored} again. Next: use "
        f'World({world_size}, backend="processes"), or keep the value in the function.'
    ]


def _by_line(found: Iterable[tuple[SourceLine | None, int, Call]]) -> Iterable[tuple[SourceLine, Found]]:
    lines: dict[SourceLine, Found] = {}
    for line, rank, call in found:
        if line is not None:
            lines.setdefault(line, []).append((rank, call))
    return lines.items()


def _names(found: Found, world_size: int) -> str:
    return who(sorted({rank for rank, _ in found}), world_size)


def _call(found: Found) -> str:
    """Return the call's name. On a ring, one line sends to a different peer on each rank: then only what it does."""
    names = {call.name for call in dict(reversed(found)).values()}
    return found[0][1].name if len(names) == 1 else found[0][1].op


def _more(found: Found) -> str:
    count = sum(rank == found[0][0] for rank, _ in found) - 1
    return f" and {count} more" if count else ""


# -- values that are not finite ----------------------------------------------------------------------------------------


def not_finite_warnings(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line on the first call to which ranks brought infinity or NaN, if there is one. `calls` are by rank.

    What a rank may have received does not count. Without `replay=True`, the line is only there if NaN stays to the end:
    a loss scaler recovers from it, and an attention mask contains infinity.
    """
    if not any(call.values for theirs in calls for call in theirs) and not any(map(_ends_with_nan, calls)):
        return
    first_of = {rank: call for rank, theirs in enumerate(calls) if (call := _first_not_finite(theirs)) is not None}
    if not first_of:
        return
    rank, call = min(first_of.items(), key=lambda item: item[1].match)
    whose = [other for other, its_first in first_of.items() if its_first.match == call.match]
    name = next((one.name for one in call.values.brought if not one.finite), "") if call.values else ""
    earlier = "one" if call.values else f"a NaN in the first {BEGINNING:,} elements of a tensor"
    yield (
        f"{who(whose, len(calls))} brought a value that is not finite (infinity or NaN) to {call.name}"
        f"{name and f', in {name},'} at {quoted(call.line)}{_counters(call, calls[rank])}. No earlier call had "
        f"{earlier}. Next: look at how {who(whose)} computed it, or whether it was filled at all after `torch.empty` "
        "or `to_empty`. An attention mask contains such values on purpose, and a loss scaler expects them."
    )


def _ends_with_nan(theirs: Sequence[Call]) -> bool:
    """Return whether a rank's last call at one of its lines brought a NaN."""
    return any(isnan(call.least_finite) for call in {call.line: call for call in theirs}.values())


def _first_not_finite(theirs: Sequence[Call]) -> Call | None:
    """Return a rank's first call to which it brought such a value; None if it may have received one before."""
    masks = {call.line for call in theirs} - {call.line for call in theirs if call.least_finite != inf}
    for call in theirs:
        if call.least_finite and (call.values is not None or call.line not in masks):
            return call
        if call.values is not None and not all(one.finite for one in call.values.received):
            return None
    return None


def _counters(call: Call, theirs: Sequence[Call]) -> str:
    """Return the whole numbers that differ between a rank's calls at the line of `call`, such as its loop's counter."""
    here = [dict(one.values.counters) for one in theirs if one.line == call.line and one.values is not None]
    counters = call.values.counters if call.values is not None else ()
    shown = [f"{name} = {value}" for name, (value,) in counters if any(one.get(name) != (value,) for one in here)]
    return f", with {', '.join(shown)}" if shown else ""


# -- parameters that drift apart ---------------------------------------------------------------------------------------


Side = dict[int, OptimizerSteps]
"""The same optimizer on each rank."""


def drift_warnings(calls: Sequence[Sequence[Call]], memory: Sequence[MemoryReport]) -> Iterator[str]:
    """Yield a line on the first step after which the parameters of ranks differ, if gradients are equal because ranks
    have reduced them. `calls` are by rank."""
    sides: defaultdict[object, Side] = defaultdict(dict)
    for report in memory:
        count: Counter[object] = Counter()
        for one in report.optimizers:
            line = one.steps[0].line
            count[line] += 1
            sides[line, count[line]][report.rank] = one
    for side in sides.values():
        if found := _first_step_apart(side, calls):
            yield _drifted(side, *found)
            return


def _first_step_apart(side: Side, calls: Sequence[Sequence[Call]]) -> tuple[dict[int, int], dict[int, int]] | None:
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
    """Return whether a rank has exchanged as many numbers with `ranks` as it has gradients, since its step before.

    A broadcast or a message does not count: a program sends weights so, and its ranks may differ on purpose. Nor does
    a pickled object.
    """
    after, until = optimizer.steps[number - 1].seconds if number else 0.0, optimizer.steps[number].seconds
    exchanged = sum(
        call.total_bytes // call.dtype.itemsize
        for call in theirs
        if call.dtype
        and call.op not in ("broadcast", "send", "recv")
        and not call.inside.endswith("_object")
        and after < call.issued <= until
        and set(ranks) <= set(call.ranks)
    )
    return exchanged >= optimizer.numel


def _drifted(side: Side, parameters: dict[int, int], numbers: dict[int, int]) -> str:
    shown = grouped(parameters)
    fewest = min(shown, key=lambda item: (len(item[0]), numbers[item[0][0]]))[0]
    line = side[fewest[0]].steps[numbers[fewest[0]]].line
    text = (
        f"parameters differ ({' | '.join(who(ranks) for ranks, _ in shown)}) after step {numbers[fewest[0]] + 1} of "
        f"{who(fewest)}{(line and f' at {quoted(line)}') or ''}. These ranks stepped with the same gradients, so their "
        "parameters must be equal, unless each rank changes its own on purpose"
    )
    if len(set(numbers.values())) > 1:
        made = "; ".join(f"{who(ranks)}: {number}" for ranks, number in grouped(numbers))
        return (
            f"{text}. Before it, they had made different numbers of steps ({made}). Next: let every rank step each "
            "time, or none: decide it by a value that all ranks have."
        )
    if not any(numbers.values()):
        return (
            f"{text} or holds a different part of the model, as in tensor parallelism. They differ from this "
            "optimizer's first step on. Next: if each rank holds the whole model, start every rank with the same "
            "weights (the same seed or checkpoint, a broadcast from rank 0, or DistributedDataParallel), the same "
            "learning rate and the same optimizer state. If it did, look for a gradient that is None on some ranks "
            "only."
        )
    before = {side[rank].steps[number - 1].parameters for rank, number in numbers.items()}
    if len(before) > 1:
        earlier = zip(*(side[rank].steps[:number] for rank, number in numbers.items()), strict=True)
        always = all(len({step.parameters for step in steps}) > 1 for steps in earlier)
        first = "first weights that differ (a seed of each rank, no broadcast from rank 0), for " if always else ""
        return (
            f"{text}. They differed after the step before it, too. Next: look for {first}a step whose gradients are "
            "not averaged, such as one after a backward in no_sync(), or for a gradient that is None on some ranks "
            "only. If a broadcast or a copy has made the parameters equal since, look for a learning rate or an "
            "optimizer state, such as momentum, that differs."
        )
    return (
        f"{text}. They were equal after the step before it. Next: look for a gradient that is None, or for what "
        "changes parameters or the optimizer's settings, on some ranks only."
    )
