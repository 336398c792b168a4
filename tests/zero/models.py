"""Models in awkward corners, their data, and one process that trains them: what the engines are compared with."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from course_lib import World

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd with momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (Adam, {"lr": 0.01}),
    "adamw": (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def world(world_size: int) -> World:
    """Simulated ranks whose memory is not measured, which is quicker."""
    return World(world_size, measure=False)


class Corners(nn.Module):
    """Sizes that divide nothing, 0-dim and zero-size, tied, frozen and unused parameters, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 5)
        self.tied = nn.Linear(7, 7, bias=False)
        self.tied.weight = self.second.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.ones(0, 3))
        self.frozen = nn.Parameter(torch.full((7,), 1.5), requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tied(self.second(self.first(x).relu())) * self.frozen
        return (self.third(x) + self.shift) * self.scale + self.nothing.sum()


class Single(nn.Module):
    """One parameter of three elements: fewer than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] * self.weight


class Branches(nn.Module):
    """A trunk, and a branch for each sign of the batch's first number: ranks may go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 5)
        self.branches = nn.ModuleList(nn.Linear(5, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        # Each row takes its branch, so that one process on the whole batch does what the ranks do together.
        x = self.trunk(x)
        ways = (x[:, 0] > 0, x[:, 0] > 1e9, x[:, 0] <= 0)
        out = x.new_zeros(len(x), 4)
        for rows, branch in zip(ways, self.branches, strict=True):
            if rows.any():
                out = out.index_put((rows.nonzero().squeeze(1),), branch(x[rows]))
        return self.head(out)


class Stack(nn.Module):
    """Blocks in a list between two layers whose weights are tied, as in a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 6)) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 5, bias=False)
        self.out.weight = nn.Parameter(self.embed.weight.detach().t().contiguous())
        self.again = nn.Linear(5, 6, bias=False)
        self.again.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(self.norm(x + self.again(x[:, :5])))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "corners": Corners,
    "single": Single,
    "branches": Branches,
    "stack": Stack,
}


def unused_in(model: nn.Module) -> dict[str, bool]:
    """The engine's option, for the models of which some rank does not use a parameter."""
    return {"find_unused_parameters": True} if isinstance(model, Corners | Branches) else {}


def make(name: str, seed: int = 0) -> nn.Module:
    """The model of that name, the same for the same seed."""
    torch.manual_seed(seed)
    return MODELS[name]()


def batch(step: int, rank: int, size: int = 3) -> Tensor:
    """[size, 5], other numbers for each step and rank."""
    return torch.randn(size, 5, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: Any, x: Tensor) -> Tensor:
    """The mean of the squared outputs: on the whole batch, the average of those on its parts."""
    loss: Tensor = model(x).float().square().mean()
    return loss


def one_process(
    model: nn.Module,
    optimizer_class: Any,
    options: dict[str, Any],
    world_size: int,
    steps: Iterable[int],
    micro_batches: int = 1,
    max_norm: float | None = None,
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters(),
) -> tuple[Any, list[float]]:
    """Train `model` in this process on the batches of all ranks together; its optimizer, and the norms if clipped."""
    optimizer = optimizer_class(groups(model), **options)
    norms = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(micro_batches):
            together = torch.cat([batch(micro_batches * step + part, rank) for rank in range(world_size)])
            loss_of(model, together).backward()
        if max_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
    return optimizer, norms


def train(engine: Any, rank: int, steps: Iterable[int], micro_batches: int = 1, max_norm: float | None = None) -> Any:
    """Train an engine on this rank's batches; the norms if clipped."""
    norms = []
    for step in steps:
        engine.zero_grad()
        for part in range(micro_batches - 1):
            with engine.no_sync():
                loss_of(engine, batch(micro_batches * step + part, rank)).backward()
        loss_of(engine, batch(micro_batches * step + micro_batches - 1, rank)).backward()
        if max_norm is not None:
            norms.append(engine.clip_grad_norm_(max_norm).item())
        engine.step()
    return norms
