"""The layout of tensors over the ranks of a run, found by comparing checksums.

The words are those of torch's DTensor. A tensor is Replicate if all ranks hold the same, Shard if each holds its part,
and Partial if the ranks' tensors are still to be added up. A tensor that differs for another reason is Varying.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.values import Summed, summed

Side = dict[int, tuple[Summed, ...]]
"""The checksums of the same tensors on each rank."""


class Held(NamedTuple):
    """Tensors that a rank brought to a call or received from it."""

    layout: str
    call: Call
    received: bool


Known = dict[tuple[int, Any], Held]
"""The tensors of each rank, by the rank and the checksums. Ranks outside of a call may hold the same by chance."""

Row = tuple[str, ...]
"""A line of the table: a call or a result, the tensor, the layout before and after the call, and a remark."""

_MEANT = {  # op: the layout of the input if the ranks' inputs differ, and of the output
    "all_reduce": ("Partial", "Varying"),
    "reduce": ("Partial", "Varying"),
    "reduce_scatter": ("Partial", "Shard"),
    "all_gather": ("Shard", "Varying"),
    "gather": ("Shard", "Varying"),
    "scatter": ("Varying", "Shard"),
    "broadcast": ("Varying", "Varying"),
    "all_to_all": ("Shard", "Shard"),
}


class Layout(str):
    """The layout of each tensor, as a table.

    Attributes:
        rows: the lines of the table, as cells: a call or a result, the tensor, the layout before and after, a remark.
    """

    rows: Sequence[Row] = ()

    __repr__ = str.__str__


def layout(calls: Sequence[Sequence[Call]], results: Sequence[Any]) -> Layout:
    """Return the layout of the tensors of each collective, and of each tensor in the `results` of the ranks."""
    known: Known = {}
    rows: dict[Row, list[str]] = {}  # from what calls have in common to their names
    for name, row in [*_of_calls(calls, known), *_of_results(results, known)]:
        rows.setdefault(row, []).append(name)
    table: list[Row] = [("", "tensor", "before", "after", "")]
    table += [(f"{name} and {len(more)} more" if more else name, *row) for row, (name, *more) in rows.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    made = [call for theirs in calls for call in theirs if call.op in _MEANT]
    if made and not any(call.values for call in made):
        lines.append("To compare the tensors of collectives too, make the world with World(…, replay=True).")
    found = Layout("\n".join(lines))
    found.rows = table[1:]
    return found


def _of_calls(calls: Sequence[Sequence[Call]], known: Known) -> Iterator[tuple[str, Row]]:
    together: defaultdict[int, dict[int, Call]] = defaultdict(dict)
    for rank, theirs in enumerate(calls):
        for call in theirs:
            if call.values is not None and call.op in _MEANT and len(call.ranks) > 1:
                together[call.match][rank] = call
    for _, members in sorted(together.items()):
        call = next(iter(members.values()))
        brought = {rank: one.values.brought for rank, one in members.items() if one.values and one.values.brought}
        received = {rank: one.values.received for rank, one in members.items() if one.values and one.values.received}
        meant_before, meant_after = _MEANT[call.op]
        before, after = _layout(brought, meant_before), _layout(received, meant_after)
        remark = _remark(call, brought, before, known)
        known |= {(rank, _held(sums)): Held(before, call, False) for rank, sums in brought.items()}
        known |= {(rank, _held(sums)): Held(after, call, True) for rank, sums in received.items()}
        names = dict.fromkeys(sums[0].name for sums in (brought or received).values())
        yield call.name, (f"{' | '.join(filter(None, names))} at {call.line}".strip(), before, after, remark)


def _remark(call: Call, brought: Side, before: str, known: Known) -> str:
    """Return what is suspicious about a reduction of tensors that all ranks had in common."""
    if _MEANT[call.op][0] != "Partial" or call.reduce_op not in ("sum", "avg") or before != "Replicate":
        return ""
    if not all(one.finite for sums in brought.values() for one in sums):
        return ""  # after the first NaN, all ranks compute NaN
    earlier = {known.get((rank, _held(sums))) for rank, sums in brought.items()}
    source = earlier.pop() if len(earlier) == 1 else None
    by_chance = all(one.uniform for sums in brought.values() for one in sums)
    if source is not None and source.received and not by_chance:
        return f"← every rank brought what {source.call.name} returned: reduced twice?"
    return "← every rank brought the same values: reduced before, the same data on every rank, or on purpose?"


def _of_results(results: Sequence[Any], known: Known) -> Iterator[tuple[str, Row]]:
    by_name: defaultdict[str, Side] = defaultdict(dict)
    numbers: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for rank, result in enumerate(results):
        for name, value in _parts(result, ""):
            if not isinstance(value, torch.Tensor):
                numbers[name][rank] = repr(value)
            elif sums := _sums(value):
                by_name[name][rank] = sums
    for name, side in by_name.items():
        after = _layout(side, _known_to_all(side, known))
        shown = grouped({rank: str(_held(sums)) for rank, sums in side.items()})
        remark = "← differs: " + " | ".join(who(ranks) for ranks, _ in shown) if after == "Varying" else ""
        if remark and len(shown) == len(results) > 2:
            remark = "← differs on every rank"
        yield "returned", (name, "", after, remark)
    for name, texts in numbers.items():
        shown = grouped(texts)
        if len(shown) > 1:
            remark = " | ".join(f"{who(ranks)}: {text}" if len(text) <= 30 else who(ranks) for ranks, text in shown)
            yield "returned", (name, "", "Varying", f"← differs: {remark}")


def _known_to_all(side: Side, known: Known) -> str:
    """Return the layout of tensors that differ, if the ranks have them from the same call, or, in groups side by side,
    from the same line."""
    found = {known.get((rank, _held(sums))) for rank, sums in side.items()}
    layouts = {(one.layout, one.call.variant, one.call.number, one.call.line) if one else ("",) for one in found}
    layout = layouts.pop()[0]
    return layout if not layouts and layout in ("Partial", "Shard") else "Varying"


def _sums(tensor: torch.Tensor) -> tuple[Summed, ...]:
    """Return the checksum of a tensor in a result; empty if its elements cannot be compared."""
    local = getattr(tensor, "_local_tensor", tensor)  # a DTensor has one
    if local.layout is not torch.strided or local.is_meta:
        return ()
    return summed([("", local.detach().cpu().resolve_conj().resolve_neg().contiguous())])


def _parts(value: Any, name: str, holders: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, numbers and strings in a result, with their names. `holders` are the lists and dicts around
    `value`: one that contains itself is read once."""
    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters(name)
        yield from value.named_buffers(name)
    elif isinstance(value, torch.Tensor | float | int | str):
        yield name, value
    elif isinstance(value, Mapping | list | tuple) and id(value) not in holders:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _parts(item, f"{name}.{key}" if name else str(key), (*holders, id(value)))


def _layout(side: Side, otherwise: str) -> str:
    if len(side) == 1:
        return f"rank {next(iter(side))}"
    return "Replicate" if len(set(map(_held, side.values()))) == 1 else otherwise if side else ""


def _held(sums: tuple[Summed, ...]) -> Any:
    """Return what a rank holds, without names."""
    return tuple((one.numel, one.checksum) for one in sums)
