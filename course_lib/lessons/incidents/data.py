"""Small models and batches that incidents share."""


import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Mlp(nn.Sequential):
    """Two layers without biases. More than `most` examples do not fit in its memory: in forward or, if `late`, in
    backward, when the second layer has its gradient."""

    def __init__(self, width: int, most: int = 1000, late: bool = False) -> None:
        super().__init__(nn.Linear(width, 2 * width, bias=False), nn.Tanh(), nn.Linear(2 * width, 1, bias=False))
        self.most, self.late = most, late

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self[1](self[0](x))
        if len(x) > self.most:
            hidden.register_hook(out_of_memory) if self.late else out_of_memory()
        out: torch.Tensor = self[2](hidden)
        return out


def out_of_memory(*_: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 332.00 MiB")


def make_mlp(width: int, seed: int, most: int = 1000, late: bool = False) -> Mlp:
    """Return the model of `seed`, the same on every rank."""
    torch.manual_seed(seed)
    return Mlp(width, most, late)


def batches(sizes: list[int], width: int, seed: int) -> list[Batch]:
    """Return a batch for each of `sizes`: inputs [size, width] and targets [size, 1]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, width, generator=generator) for size in sizes]
    return [(x, x.sum(dim=1, keepdim=True)) for x in inputs]


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """Return the model's parameters as plain tensors."""
    return [param.detach().clone() for param in model.parameters()]
