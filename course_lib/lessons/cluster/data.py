"""Data of lesson 11: a small model and its examples, and what a program has saved of it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.data import Dataset


class Examples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random examples, which note when each was asked for."""

    def __init__(self, count: int, width: int, seed: int) -> None:
        self.inputs, self.targets = torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(number)
        return self.inputs[number], self.targets[number]


class Model(nn.Module):
    """Two layers with small weights, which depend on the seed only. They can be set before and after sharding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.at_the_first_batch: list[Tensor] = []
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        generator = torch.Generator().manual_seed(torch.initial_seed())
        for param in self.parameters():
            value = torch.randn(param.shape, generator=generator, device="cpu") / 10
            if isinstance(param, DTensor):
                value = distribute_tensor(value, param.device_mesh, param.placements, src_data_rank=None)
            param.copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        if not self.at_the_first_batch:
            self.at_the_first_batch = [whole(param).detach().clone() for param in self.parameters()]
        y: Tensor = self.last(self.first(x).tanh())
        return y


def notes_its_runs(model: nn.Module, ran: list[nn.Module]) -> None:
    """Let `model` append itself to `ran` when it runs: a program may make more models than it trains."""
    model.register_forward_pre_hook(lambda model, _: ran.append(model))


def whole(param: Tensor) -> Tensor:
    """Return the whole parameter. A unit of its own, such as a layer, is still sharded when the model begins."""
    return param.full_tensor() if isinstance(param, DTensor) else param


@contextmanager
def shared_folder() -> Iterator[str]:
    """A folder that all ranks see, and that is removed when all have left."""
    first = dist.get_rank() == 0  # a rank that was stopped may leave after its group is destroyed
    names = [tempfile.mkdtemp() if first else ""]
    dist.broadcast_object_list(names)
    try:
        yield names[0]
        dist.barrier()
    finally:
        if first:
            shutil.rmtree(names[0], ignore_errors=True)


def tensors_in(path: Path) -> dict[str, TensorStorageMetadata]:
    """Return the tensors of a checkpoint, by name."""
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    return {key: entry for key, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)}


def is_sharded(path: Path) -> bool:
    """Return whether each matrix of a checkpoint has more than one chunk. Each rank's shard is a chunk."""
    return all(len(entry.chunks) > 1 for entry in tensors_in(path).values() if len(entry.size) == 2)


def what_was_saved(folder: str, epoch: int) -> dict[str, Tensor] | str:
    """Return the whole parameters in the checkpoint of an epoch, by name, or what is there instead.

    The model may be the whole checkpoint, or a part of it under any name: `last.bias`, `model.last.bias`.
    """
    path = Path(folder) / f"epoch-{epoch}"
    if not (path / ".metadata").exists():
        return f"no sharded checkpoint; the folder has {sorted(path.name for path in Path(folder).iterdir())}"
    entries = tensors_in(path)
    keys, names = sorted(entries, key=len), [name for name, _ in Model(1).named_parameters()]
    found = {name: next((key for key in keys if f".{key}".endswith(f".{name}")), "") for name in names}
    if not all(found.values()):
        return f"no whole model; the checkpoint has {keys}"
    if not is_sharded(path):
        return "each parameter in one piece, not in shards"
    state = {key: torch.empty(entries[key].size, dtype=entries[key].properties.dtype) for key in found.values()}
    dcp.load(state, checkpoint_id=path)
    return {name: state[key] for name, key in found.items()}
