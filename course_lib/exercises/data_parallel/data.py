"""The models and data that the exercises of lesson 03 are tried on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks.data import whole_numbers

DTYPES = (torch.float32, torch.float64)


def ranks(count: int) -> str:
    """`1 rank`, `3 ranks`."""
    return f"{count} rank{'s' * (count != 1)}"


def parameters(shapes: Iterable[Sequence[int]], dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """A parameter of each shape, alike on every rank."""
    drawn = (whole_numbers(*shape, seed=seed, rank=number, dtype=dtype) for number, shape in enumerate(shapes))
    return [nn.Parameter(values) for values in drawn]


def give_gradients(params: Sequence[nn.Parameter], seed: int, rank: int, unused: Iterable[int] = ()) -> None:
    """Give each of `params` a gradient of whole numbers, other ones on each rank; those in `unused` have none."""
    for number in set(range(len(params))) - set(unused):
        shape, dtype = params[number].shape, params[number].dtype
        params[number].grad = whole_numbers(*shape, seed=seed + 100 * number, rank=rank, dtype=dtype)


def draw_shapes(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Shapes of `count` parameters, of no, one and two dimensions."""
    return [tuple(rng.randint(1, 5) for _ in range(rng.choice((0, 1, 2, 2)))) for _ in range(count)]


def draw_unused(rng: random.Random, params: int, world_size: int) -> list[list[int]]:
    """For each rank, which parameters have no gradient there: some on one rank each, none on all."""
    unused: list[list[int]] = [[] for _ in range(world_size)]
    for number in rng.sample(range(params), params // 2 if world_size > 1 else 0):
        unused[rng.randrange(world_size)].append(number)
    return unused


class Ladder(nn.Module):
    """Layers one after the other, of which a rank may leave some out.

    Args:
        widths: of the inner part of each layer: layers have other sizes.
        used: which layers this rank uses.
        dtype: of the parameters.
        on_layer: called in backward with a layer's place in forward before the layer's own backward; for all layers,
            the last place first.
        order: the numbers of the layers as forward goes through them; by default as they are registered.
    """

    def __init__(
        self,
        widths: Sequence[int],
        used: Iterable[int],
        dtype: torch.dtype,
        on_layer: Callable[[int], None],
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, width, dtype=dtype) for width in widths)
        self.used, self.on_layer, self.order = set(used), on_layer, order or range(len(widths))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()  # so that each layer is announced, also where those before it are not used
        for place, number in enumerate(self.order):
            x = x + self.layers[number](x).mean(dim=1, keepdim=True) if number in self.used else 1 * x
            x.register_hook(lambda _, place=place: self.on_layer(place))
        return x


def last_rank_lags_behind(layer: int, layers: int) -> None:
    """Let the last rank reach `layer` in backward only after every other rank has reached the layer after that.

    Whoever waits for the last rank in between, waits for ever: that is how a rank that does not go on is found out.
    """
    last = dist.get_world_size() - 1
    if dist.get_rank() < last and layer < layers - 1:
        dist.send(torch.zeros(1), dst=last)
    if dist.get_rank() == last and layer > 0:
        hear_from_all_others()


def meet() -> None:
    """Go on when every rank has come. Made of messages: a barrier would have to stand in line with all-reduces."""
    last = dist.get_world_size() - 1
    if dist.get_rank() < last:
        dist.send(torch.zeros(1), dst=last)
        dist.recv(torch.zeros(1), src=last)
    else:
        hear_from_all_others()
        for rank in range(last):
            dist.send(torch.zeros(1), dst=rank)


def hear_from_all_others() -> None:
    """On the last rank: receive a message from each of the others."""
    for rank in range(dist.get_world_size() - 1):
        dist.recv(torch.zeros(1), src=rank)
