"""Checks of one rank's own arguments, independent of its peers.

gloo checks them only after the peers' calls have started, which would then hang.
"""

from itertools import pairwise
from typing import Any

import torch

from ...meter import is_dense, overlap, spans, tensors_in
from .call import IN_ORDER, order_of

_LISTS = {  # op: (the list with one tensor for each rank, the single tensor, where the list is needed)
    "all_gather": ("output_tensors", "input_tensors", "everywhere"),
    "reduce_scatter": ("input_tensors", "output_tensors", "everywhere"),
    "gather": ("output_tensors", "input_tensors", "root"),
    "scatter": ("input_tensors", "output_tensors", "root"),
}
_SINGLES = {  # op: (the tensor with a part for each rank, the part)
    "all_gather_single": ("output_tensor", "input_tensor"),
    "reduce_scatter_single": ("input_tensor", "output_tensor"),
}

_WITH_TENSORS = (list, torch.Tensor)


def check(op: str, group_size: int, is_root: bool, arguments: dict[str, Any], devices: tuple[str, ...]) -> None:
    """Raise a ValueError for arguments that must be wrong on this rank, of a group with so many members.

    `is_root` says whether the call names this rank: as its root, or as the peer of a message. `arguments` are those of
    the `c10d` operator, by their names in its schema. `devices` are the types that the backend supports.
    """
    given = [value for value in arguments.values() if isinstance(value, _WITH_TENSORS)]  # few of many: it is fast
    for tensor in tensors_in(given):
        if hasattr(tensor, "__tensor_flatten__"):  # gloo would send from address 0, which ends the process
            raise ValueError(
                f"{op}: the tensor is a {type(tensor).__name__}, a wrapper without memory of its own. Of a DTensor, "
                "pass this rank's part, tensor.to_local(), or the whole, tensor.full_tensor()."
            )
        if tensor.device.type not in devices:
            raise ValueError(
                f"{op}: the tensor is on device {tensor.device}, and gloo, the backend of this world, sends from the "
                "CPU. Make it without device=, or move it: tensor.cpu()."
            )
        if op in IN_ORDER and tensor.layout is torch.strided and not is_dense(tensor):
            raise ValueError(
                f"{op}: the elements of {_text(tensor)} do not lie next to each other in memory (strides "
                f"{list(tensor.stride())}), and gloo would use their neighbours. Pass tensor.contiguous(), and copy "
                "the result back."
            )
    if op == "recv" and "src" not in arguments:
        raise ValueError("recv: say which rank sends, with src=. NCCL needs it, too.")
    if op in ("send", "recv") and is_root:
        raise ValueError(f"{op}: the other rank is this rank itself. Copy the tensor instead: y.copy_(x).")
    if op in _LISTS:
        many, one, where = _LISTS[op]
        if where == "everywhere" or is_root:
            _check_list(op, group_size, list(tensors_in(arguments[many])), next(tensors_in(arguments[one])))
    elif op in _SINGLES:
        whole, part = (arguments[name] for name in _SINGLES[op])
        _check_single(op, group_size, whole, part)
    elif op == "all_to_all":
        for name in ("input_tensors", "output_tensors"):
            _check_count(op, group_size, len(arguments[name]))
    elif op == "all_to_all_single":
        if not arguments["output"].is_contiguous():  # torch itself refuses such an input
            raise ValueError(
                f"{op}: the elements of the output {_text(arguments['output'])} do not lie in its own order in memory "
                f"(strides {list(arguments['output'].stride())}), and gloo would mix them up. Make a contiguous one, "
                "and copy the result back."
            )
        for name in ("input", "output"):
            _check_splits(op, group_size, name, arguments[name], arguments[f"{name}_split_sizes"])
        if overlap(*(spans([arguments[name]]) for name in ("input", "output"))):
            raise ValueError(
                f"{op}: the output shares memory with the input, so that what arrives would overwrite what is still to "
                "be sent. Make a tensor for the output: torch.empty_like(input)."
            )
    if op in ("all_gather", "gather", "all_to_all"):
        _check_apart(op, list(tensors_in(arguments["output_tensors"])))


def _check_count(op: str, group_size: int, count: int) -> None:
    if count != group_size:
        raise ValueError(f"{op}: the list needs one tensor for each of the {group_size} ranks, got {count}.")


def _check_list(op: str, group_size: int, many: list[torch.Tensor], one: torch.Tensor) -> None:
    _check_count(op, group_size, len(many))
    for index, tensor in enumerate(many):
        if tensor.numel() != one.numel() or tensor.dtype != one.dtype:
            raise ValueError(
                f"{op}: tensor {index} of the list is {_text(tensor)}, and the single tensor is {_text(one)}. gloo "
                "needs the same size and dtype for all. If ranks are meant to have different sizes, pad the shorter "
                "ones, and cut the padding off afterwards."
            )
        if tensor.shape == one.shape and order_of(op, tensor) != order_of(op, one):
            raise ValueError(
                f"{op}: the elements of tensor {index} of the list and of the single tensor lie in different orders in "
                f"memory (strides {list(tensor.stride())} and {list(one.stride())}), and gloo would mix them up. Pass "
                "tensor.contiguous(), and copy the result back."
            )


def _check_apart(op: str, outputs: list[torch.Tensor]) -> None:
    """Refuse outputs that share memory: each rank's part would overwrite another's. If some have memory of their own,
    the others may be padding, whose values nobody reads: Muon gathers parameters so."""
    taken = sorted((span, index) for index, tensor in enumerate(outputs) for span in spans([tensor]))
    shared = [
        sorted((one, two))
        for ((storage, _, end), one), ((other, start, _), two) in pairwise(taken)
        if storage == other and start < end
    ]
    if shared and len({index for pair in shared for index in pair}) == len(outputs):
        one, two = min(shared)
        raise ValueError(
            f"{op}: outputs {one} and {two} share memory, so that one rank's part would overwrite another's. Make a "
            f"tensor for each: [torch.empty(...) for _ in range({len(outputs)})]; a list times a number repeats one "
            "tensor."
        )


def _check_single(op: str, group_size: int, whole: torch.Tensor, part: torch.Tensor) -> None:
    if whole.dtype != part.dtype:
        raise ValueError(f"{op}: the input and the output differ in dtype: {_text(whole)} and {_text(part)}.")
    if whole.numel() == group_size * part.numel():
        return
    if op == "reduce_scatter_single" and whole.numel() % group_size:
        raise ValueError(
            f"{op}: the input needs a length divisible by the {group_size} ranks, got {whole.numel()} elements. Pad it "
            f"to {-(-whole.numel() // group_size) * group_size} first."
        )
    raise ValueError(
        f"{op}: {_text(whole)} is not {group_size} times {_text(part)}. "
        f"The large tensor has {group_size} parts, one for each rank, of the size of the small one."
    )


def _check_splits(op: str, group_size: int, name: str, tensor: torch.Tensor, splits: list[int]) -> None:
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits and (len(splits) != group_size or sum(splits) != rows):
        raise ValueError(
            f"{op}: {name}_split_sizes={list(splits)} must hold one number for each of the {group_size} ranks, and add "
            f"up to the {rows} rows of the {name}."
        )
    if not splits and rows % group_size:
        raise ValueError(
            f"{op}: the {rows} rows of the {name} do not divide by {group_size} ranks. If there are as many for each "
            "rank, find why rows are missing (torch.bincount needs minlength=); if not, pass "
            f"{name}_split_sizes."
        )


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
