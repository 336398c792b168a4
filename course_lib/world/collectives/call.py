"""`Call`: the record of one collective, send, receive or new group on one rank. `Progress`: what becomes of it."""

import time
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

import torch

from ...meter import CommCall, SourceLine, tensors_in
from ..error_report import Unfinished
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

IN_ORDER = ("all_reduce", "broadcast", "reduce", "scatter", "reduce_scatter")
"""Ops for which gloo uses as many elements as a tensor has, from its first one on, whatever its strides are."""

DEFAULT_GROUP = "0"  # torch's name for the group of all ranks


Splits = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Call(CommCall):
    """One rank's part in a collective, a message or a new group, with what its peers' calls are compared with."""

    reduce_op: str | None = None  # `sum`, `max`, ... if the op has one
    tag: int = 0  # of a message
    shapes: tuple[tuple[int, ...], ...] = ()  # of the tensors that the ranks must agree on
    orders: tuple[tuple[int, ...], ...] = ()  # of their elements in memory, if the op keeps to it
    layout: torch.layout = torch.strided  # of the same tensors: strided, or a sparse one
    splits: Splits | None = None  # for all-to-all, the numbers of elements sent to and received from each group rank
    inside: str = ""  # the library function that makes the call, if the learner's line calls it by its name
    stack: tuple[SourceLine, ...] = ()  # the learner's lines that led to the call, outermost first
    in_thread: bool = False  # whether a thread that the rank has started makes the call
    unfinished: Unfinished | None = None  # an exception that the rank was still handling
    values: Values | None = None  # the values of its small tensors, in a world with `replay=True`
    least_finite: float = 0.0  # NaN or infinity if the rank brought one to the call, except to a maximum or minimum
    match: int = 0  # the number of its pending call, from 1; 0 if it has no peers, as in a dry run
    open_handle: bool = False  # the learner's code had the Work, and never waited or asked for its state
    handle_waited: float = inf  # when the learner's code, which had the Work and never asked for its state, waited
    used_at: SourceLine | None = None  # the learner's line that used the tensors before the wait, if strict

    def __repr__(self) -> str:
        return f"{self.name} of {self.tensors} at {self.line}"

    @property
    def numels(self) -> tuple[int, ...]:
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def name(self) -> str:
        """Return `all_reduce #2`, or for a message its peer. A rank outside a group does not know the members."""
        if self.op in ("send", "recv"):
            tag = f" with tag {self.tag}" if self.tag else ""
            return f"{self.op} {'to' if self.op == 'send' else 'from'} rank {self.root}{tag}"
        if self.op == "new_group":
            return f"new_group({list(self.ranks)})"
        if not self.ranks:
            return f"{self.variant} on a group of others"
        where = "" if self.group_name == DEFAULT_GROUP else f" in group {list(self.ranks)}"
        return f"{self.variant} #{self.number}{where}"

    def with_match(self, number: int) -> Self:
        """Return the call as a part of the pending call with this number. `dataclasses.replace` would take ten times as
        long."""
        call = object.__new__(type(self))
        vars(call).update(vars(self), match=number)
        return call

    @property
    def strides(self) -> str:
        """Return `strides [1, 4]`, or `strides [1, 4], [2, 1]` for several tensors."""
        given = [
            list(order or torch.empty(shape, device="meta").stride())
            for shape, order in zip(self.shapes, self.orders, strict=True)
        ]
        return f"strides {', '.join(map(str, given))}"

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
    splits = _splits(op, arguments, len(ranks)) if op in ("all_to_all", "all_to_all_single") else None
    parts = len(ranks) if op in ("gather", "scatter") else 1  # only the root has the whole tensor
    total_bytes = parts * sum(tensor.numel() * tensor.element_size() for tensor in whole)
    if op == "all_reduce" and whole and whole[0].is_sparse:
        # A ring carries what each rank has to all others, once and not twice.
        total_bytes = len(ranks) * (whole[0]._indices().nbytes + whole[0]._values().nbytes) // 2
    return {
        "root": None if root is None else ranks[root],
        "tag": arguments.get("tag", 0),
        "shapes": tuple(tuple(tensor.shape) for tensor in tensors),
        "orders": tuple(order_of(op, tensor) for tensor in tensors),
        "dtype": tensors[0].dtype if tensors else None,
        "layout": tensors[0].layout if tensors else torch.strided,
        "splits": splits,
        "piece_bytes": tuple(numel * tensors[0].itemsize for numel in splits[0]) if splits and tensors else (),
        "total_bytes": total_bytes,
    }


def order_of(op: str, tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor, if an op may mix up its elements because of them; empty if it is contiguous.

    Those of dimensions of size 1 may be any: they are 1 here. NCCL copies lists of tensors itself.
    """
    if op not in IN_ORDER or tensor.layout is not torch.strided or tensor.is_contiguous():
        return ()
    if tensor.is_cuda and op in ("scatter", "reduce_scatter"):
        return ()
    return tuple(stride if size > 1 else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _splits(op: str, arguments: dict[str, Any], members: int) -> Splits:
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


@dataclass(kw_only=True, eq=False)
class Progress:
    """The state of a call so far. It outlives the `LocalCall`, which holds tensors."""

    call: Call  # as it was made
    index: int  # its place among the rank's calls, from 0
    started: float  # the start of the run, in seconds of `time.perf_counter` where the rank is
    values: Values | None
    match: int = 0
    matched: float = inf
    done: float = inf
    waited_from: float = inf
    used_at: SourceLine | None = None
    open_handle: bool = False  # the learner's code has the Work, and has not waited or asked for its state
    handle_waited: float = inf
    delivering: bool = False  # the transport's thread has not finished delivering the result
    at_end_of_backward: bool = False  # the callbacks queued for the end of its backward pass are running

    @property
    def record(self) -> Call:
        return replace(
            self.call,
            values=self.values,
            match=self.match,
            matched=self.matched,
            done=self.done,
            waited_from=self.waited_from,
            used_at=self.used_at,
            open_handle=self.open_handle,
            handle_waited=self.handle_waited,
        )

    @property
    def waited_for(self) -> float:
        """Return for how many seconds the rank has waited for the call."""
        return self.now() - self.waited_from

    def now(self) -> float:
        return time.perf_counter() - self.started

    def wait_begins(self) -> None:
        """Record that the rank now only waits for the call, unless it is done."""
        if self.done == inf:
            self.waited_from = self.now()

    def wait_ends(self) -> None:
        """Discard the recorded wait if the call is not done: the rank went on without it."""
        if self.done == inf:
            self.waited_from = inf

    def backward_ends(self) -> None:
        self.wait_begins()
        self.at_end_of_backward = True

    def backward_ended(self) -> None:
        self.wait_ends()
        self.at_end_of_backward = False
