"""The layout of tensors over the ranks of a run, found by comparing checksums.

The words are those of torch's DTensor. A tensor is Replicate if all ranks hold the same, Shard if each holds its part,
and Partial if the ranks' tensors are still to be added up. A tensor that differs for another reason is Varying.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..collectives.call import Call
from ..collectives.values import Summed, summed
from .rank_error import grouped, who

Side = dict[int, tuple[Summed, ...]]
"""The checksums of the same tensors on each rank."""

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
    """The layout of each tensor, as a table."""

    __repr__ = str.__str__


def layout(calls: Sequence[Sequence[Call]], results: Sequence[Any]) -> Layout:
    """Return the layout of the tensors of each collective, and of each tensor in the `results` of the ranks."""
    known: dict[Any, str] = {}  # from what the ranks hold to the layout that a call gives it
    rows: dict[Row, list[str]] = {}  # from what calls have in common to their names
    for name, row in [*_of_calls(calls, known), *_of_results(results, known)]:
        rows.setdefault(row, []).append(name)
    table: list[Row] = [("", "tensor", "before", "after", "")]
    table += [(f"{name} and {len(more)} more" if more else name, *row) for row, (name, *more) in rows.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    if not any(call.values for theirs in calls for call in theirs):
        lines.append("To compare the tensors of collectives too, make the world with World(…, replay=True).")
    return Layout("\n".join(lines))


def _of_calls(calls: Sequence[Sequence[Call]], known: dict[Any, str]) -> Iterator[tuple[str, Row]]:
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
        known |= {_held(brought): before, _held(received): f"{after} of {call.name}"}
        names = dict.fromkeys(sums[0][0] for sums in (brought or received).values())
        yield call.name, (f"{' | '.join(filter(None, names))} at {call.line}".strip(), before, after, remark)


def _remark(call: Call, brought: Side, before: str, known: dict[Any, str]) -> str:
    """Return what is suspicious about a reduction of tensors that all ranks had in common."""
    if _MEANT[call.op][0] != "Partial" or call.reduce_op not in ("sum", "avg") or before != "Replicate":
        return ""
    earlier = known.get(_held(brought), "")
    if " of " in earlier:
        return f"← reduces the result of {earlier.partition(' of ')[2]} again"
    return "← every rank brought the same values: reduced before, or meant?"


def _of_results(results: Sequence[Any], known: dict[Any, str]) -> Iterator[tuple[str, Row]]:
    by_name: defaultdict[str, Side] = defaultdict(dict)
    for rank, result in enumerate(results):
        for name, tensor in _tensors(result, ""):
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor has one
            dense = local.layout is torch.strided and not local.is_meta
            if sums := summed([("", local.detach().cpu().resolve_conj().resolve_neg().contiguous())] if dense else []):
                by_name[name][rank] = sums
    for name, side in by_name.items():
        found = known.get(_held(side), "").partition(" of ")[0] if len(side) > 1 else ""
        after = _layout(side, found or "Varying")
        shown = grouped({rank: str(sums) for rank, sums in side.items()})
        remark = "← differs: " + " | ".join(who(ranks) for ranks, _ in shown) if after == "Varying" else ""
        yield "returned", (name, "", after, remark)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a result, with their names."""
    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters(name)
        yield from value.named_buffers(name)
    elif isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(item, f"{name}.{key}" if name else str(key))


def _layout(side: Side, otherwise: str) -> str:
    if len(side) == 1:
        return f"rank {next(iter(side))}"
    return "Replicate" if len(set(_held(side))) == 1 else otherwise if side else ""


def _held(side: Side) -> tuple[Any, ...]:
    """Return what each rank holds, without names."""
    return tuple(tuple((shape, checksum) for _, shape, checksum in sums) for _, sums in sorted(side.items()))
