"""`Call`: the record of one collective, send, receive or new group on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch

from ...meter import SourceLine, tensors_in
from ..learner_code import Unfinished
from .values import Values

# For each c10d operator, its name in `torch.distributed`, the argument whose tensors must agree on every rank in their
# number, sizes and dtype, and the argument that holds the whole tensor that the members share or make.
_OPERATORS = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce_coalesced", "tensors", "tensors"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "allgather_coalesced_": ("all_gather_coalesced", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather_single_coalesced", "inputs", "outputs"),
    "_allgather_base_": ("all_gather_single", "input_tensor", "output_tensor"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter_single", "input_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_single_coalesced", "inputs", "inputs"),
    "gather_": ("gather", "input_tensors", "input_tensors"),
    "scatter_": ("scatter", "output_tensors", "output_tensors"),
    "alltoall_": ("all_to_all", "output_tensors", "input_tensors"),
    "alltoall_base_": ("all_to_all_single", "output", "input"),
    "barrier": ("barrier", "", ""),
    "monitored_barrier_": ("monitored_barrier", "", ""),
    "send": ("send", "tensors", "tensors"),
    "recv_": ("recv", "tensors", "tensors"),
    "recv_any_source_": ("recv", "tensors", "tensors"),
}
OPS = {operator: op for operator, (op, _, _) in _OPERATORS.items()}
_AGREED = {op: agreed for op, agreed, _ in _OPERATORS.values()}
_WHOLE = {op: whole for op, _, whole in _OPERATORS.values()}

DEFAULT_GROUP = "0"
"""torch's name for the group of all ranks."""


@dataclass(slots=True, kw_only=True)
class Times:
    """The times of a call, in seconds from the start of the run; inf for an event that has not happened."""

    started: float = 0.0  # the start of the run, in seconds of `time.perf_counter` where the rank is
    issued: float = inf  # the rank made the call
    matched: float = inf  # every member had called, and the bytes began to move
    done: float = inf  # the bytes had arrived
    waited_from: float = inf  # from here to `done`, the rank did nothing except wait
    delivering: bool = False  # the transport has the call, and its thread has not finished delivering the result
    open_handle: bool = False  # the learner's code got the Work, and has not waited for it or asked for its state
    used_at: SourceLine | None = None  # the learner's line that used the tensors before the wait, in a strict world
    match: int = 0  # the number of the pending call that it belongs to, from 1; 0 if it has no peers, as in a dry run

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter() - self.started

    def wait_begins(self) -> None:
        """Record that the rank now only waits for the call, unless it is done."""
        if self.done == inf:
            self.waited_from = self.now()

    def wait_ends(self) -> None:
        """Discard the recorded wait if the call is not done: the rank went on without it."""
        if self.done == inf:
            self.waited_from = inf


@dataclass(frozen=True, kw_only=True)
class Call:
    """One rank's part in a collective, a message or a new group.

    Attributes:
        op: the name in `torch.distributed`, such as `all_reduce`.
        group_name: torch's name of the group.
        ranks: global ranks of the members, by group rank.
        root: global rank of `src` or `dst`, if the op has one.
        reduce_op: `sum`, `max`, ... if the op has one.
        tag: of a message.
        shapes: shapes of the tensors that the ranks must agree on.
        layout: their layout: `torch.strided` or a sparse one.
        splits: for all-to-all, the numbers of elements sent to and received from each group rank.
        total_bytes: bytes of the whole tensor that the members share or make, such as an all-gather's output; for an
            all-to-all, this rank's input.
        padding_bytes: padding among these bytes, read from the tensors' attribute `padding_numel`.
        number: this rank's count of the op in the group, from 1.
        unfinished: an exception that the rank was still handling when it made the call.
        values: the values of its small tensors, in a world with `replay=True`.
    """

    op: str
    group_name: str
    ranks: tuple[int, ...]
    source_line: SourceLine
    root: int | None = None
    reduce_op: str | None = None
    tag: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: torch.dtype | None = None
    layout: torch.layout = torch.strided
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    total_bytes: int = 0
    padding_bytes: int = 0
    number: int = 1
    times: Times = field(default_factory=Times, compare=False, repr=False)
    unfinished: Unfinished | None = field(default=None, compare=False, repr=False)
    values: Values | None = field(default=None, compare=False, repr=False)

    @property
    def numels(self) -> tuple[int, ...]:
        """Return the number of elements of each tensor."""
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def name(self) -> str:
        """Return `all_reduce #2`, or for a message its peer. A rank outside a group does not know the members."""
        if self.op in ("send", "recv"):
            peer = "any rank" if self.root is None else f"rank {self.root}"
            return (
                f"{self.op} {'to' if self.op == 'send' else 'from'} {peer}{f' with tag {self.tag}' if self.tag else ''}"
            )
        if self.op == "new_group":
            return f"new_group({list(self.ranks)})"
        if not self.ranks:
            return f"{self.op} on a group of others"
        where = "" if self.group_name == DEFAULT_GROUP else f" in group {list(self.ranks)}"
        return f"{self.op} #{self.number}{where}"

    @property
    def tensors(self) -> str:
        """Return `float32 [4, 2]`, or `float32 [4], [8]` for several tensors."""
        if self.dtype is None:
            return "no tensor"
        shapes = ", ".join(str(list(shape)) for shape in self.shapes[:3])
        more = f" and {len(self.shapes) - 3} more" if len(self.shapes) > 3 else ""
        return f"{str(self.dtype).removeprefix('torch.')} {shapes}{more}"


def described(op: str, ranks: tuple[int, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a `Call` that follow from the `arguments` of a `c10d` operator, by their names in its
    schema. `ranks` are the members of the group.
    """
    tensors = list(tensors_in(arguments.get(_AGREED.get(op, ""), ())))
    root = next((arguments[name] for name in ("root_rank", "src", "dst") if name in arguments), None)
    if root is not None and not 0 <= root < len(ranks):
        raise ValueError(
            f"{op}: there is no rank {root} in this group of {len(ranks)}. "
            f"src and dst are global ranks, here one of {list(ranks)}."
        )
    whole = list(tensors_in(arguments.get(_WHOLE.get(op, ""), ())))
    parts = len(ranks) if op in ("gather", "scatter") else 1  # only the root has the whole tensor
    return {
        "root": None if root is None else ranks[root],
        "tag": arguments.get("tag", 0),
        "shapes": tuple(tuple(tensor.shape) for tensor in tensors),
        "dtype": tensors[0].dtype if tensors else None,
        "layout": tensors[0].layout if tensors else torch.strided,
        "splits": _splits(op, arguments, len(ranks)) if op in ("all_to_all", "all_to_all_single") else None,
        "total_bytes": parts * sum(tensor.numel() * tensor.element_size() for tensor in whole),
        "padding_bytes": parts * sum(getattr(t, "padding_numel", 0) * t.element_size() for t in whole),
    }


def _splits(op: str, arguments: dict[str, Any], members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if op == "all_to_all":
        sent, received = (
            tuple(tensor.numel() for tensor in tensors_in(arguments[name]))
            for name in ("input_tensors", "output_tensors")
        )
        return sent, received

    def sizes(tensor: torch.Tensor, rows: list[int]) -> tuple[int, ...]:
        if not rows:
            return (tensor.numel() // members,) * members
        row = tensor[0].numel() if tensor.shape[0] else 0
        return tuple(count * row for count in rows)

    return (
        sizes(arguments["input"], arguments["input_split_sizes"]),
        sizes(arguments["output"], arguments["output_split_sizes"]),
    )
