"""Shared parts of lesson 03's exercises: models, data, ranks held back, and a rule about when all-reduces start."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Finding, Row, Rule, Trial, draw_world_size, whole_numbers
from ...world import Call

DTYPES = (torch.float32, torch.float64)


def parameters(shapes: Iterable[Sequence[int]], dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """Return a parameter of each shape, the same on every rank."""
    drawn = (whole_numbers(*shape, seed=seed, rank=number, dtype=dtype) for number, shape in enumerate(shapes))
    return [nn.Parameter(values) for values in drawn]


def give_gradients(params: Sequence[nn.Parameter], seed: int, rank: int, unused: Iterable[int] = ()) -> None:
    """Give each of `params` except `unused` a gradient of whole numbers, different on each rank."""
    for number in set(range(len(params))) - set(unused):
        shape, dtype = params[number].shape, params[number].dtype
        params[number].grad = whole_numbers(*shape, seed=seed + 100 * number + 50, rank=rank, dtype=dtype)


def add_digits(params: Sequence[nn.Parameter], rank: int, world_size: int) -> None:
    """Make the gradients in float64 numbers that float32 does not have: add 2²⁶ on rank 0, subtract it on the last.

    So sums over ranks remain small, and rounding in float32 shows in them.
    """
    for param in params:
        if param.grad is not None and param.dtype == torch.float64:
            param.grad += 2**26 * ((rank == 0) - (rank == world_size - 1))


def draw_shapes(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Return shapes of `count` parameters, of no, one and two dimensions."""
    return [tuple(rng.randint(1, 5) for _ in range(rng.choice((0, 1, 2, 2)))) for _ in range(count)]


def draw_unused(rng: random.Random, params: int, world_size: int) -> list[list[int]]:
    """Return, for each rank, the parameters without a gradient there: some on one rank each, none on all ranks."""
    unused: list[list[int]] = [[] for _ in range(world_size)]
    for number in rng.sample(range(params), params // 2 if world_size > 1 else 0):
        unused[rng.randrange(world_size)].append(number)
    return unused


class Ladder(nn.Module):
    """Layers in sequence, some of which a rank may leave out.

    Args:
        widths: of the inner part of each layer, so that layers can differ in size.
        used: which layers this rank uses.
        dtype: of the parameters.
        on_layer: called in backward, before each layer's own backward, with the layer's place in forward; for all
            layers, the last place first.
        order: the numbers of the layers in the order of forward; by default the order of registration.
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
        x = x.detach().requires_grad_()  # so that on_layer is called even if all earlier layers are unused
        for place, number in enumerate(self.order):
            x = x + self.layers[number](x).mean(dim=1, keepdim=True) if number in self.used else 1 * x
            x.register_hook(lambda _, place=place: self.on_layer(place))
        return x


def draw_ladder_case(rng: random.Random, number: int) -> Case:
    """Draw two steps in which every layer is used, or in the first of which some ranks leave layers out.

    Draw 1 uses the layers in a different order than they are listed, and a bucket holds two or more of them: the last
    parameter of a bucket is not the last that gets its gradient. If ranks leave layers out, all buckets have the same
    size. Then mismatched buckets are summed without an error, and the outcome is the same on every run.
    """
    world_size, layers, seed = draw_world_size(rng, number), rng.randint(4, 5), rng.getrandbits(32)
    dtype, micro_batches = DTYPES[number % 2], 1 + (number in (1, 3, 4))
    widths, bucket_numel, steps = rng.sample(range(2, 8), layers), rng.choice((7, 10)), 2
    unused: list[list[int]] = [[] for _ in range(world_size)]
    order = list(range(layers))
    if number == 1:
        order, bucket_numel = order[::-1], 3 * max(widths) + 1
    if number in (2, 5):
        width = rng.randint(2, 5)
        widths, bucket_numel, steps = [width] * layers, 3 * width, 1 + (number == 5)
        unused = draw_unused(rng, layers, world_size)

    def args(rank: int) -> tuple[Ladder, int, list[list[Tensor]]]:
        torch.manual_seed(seed)
        used = set(range(layers)) - set(unused[rank])
        model = Ladder(widths, used, dtype, lambda layer: last_rank_lags_behind(layer, layers), order)
        batches = [
            [
                whole_numbers(3, 2, seed=seed + 10 * step + part, rank=100 * rank, dtype=dtype)
                for part in range(micro_batches)
            ]
            for step in range(steps)
        ]
        return model, bucket_numel * dtype.itemsize, batches

    what = f"{layers} layers, {steps} step{'s' * (steps > 1)}"
    what += ", 2 micro-batches a step" * (micro_batches > 1)
    if any(unused):
        what += ", some layers unused on one rank" + " in the first" * (steps > 1)
    what += ", layers used in a different order than listed" * (number == 1)
    return Case(world_size=world_size, args=args, what=what)


def last_rank_lags_behind(layer: int, layers: int) -> None:
    """Let the last rank reach `layer` in backward only after every other rank has reached the next layer.

    A rank that waits for the last rank in between waits forever. This shows a backward that is held up.
    """
    last = dist.get_world_size() - 1
    if dist.get_rank() < last and layer < layers - 1:
        dist.send(torch.zeros(1), dst=last)
    if dist.get_rank() == last and layer > 0:
        hear_from_all_others()


def last_rank_comes_later(start: Callable[[], None]) -> None:
    """Call `start`, on the last rank only after it has returned on all others. So no rank may wait in it."""
    rank, last, own_tag = dist.get_rank(), dist.get_world_size() - 1, 1  # `start` may send messages, with tag 0
    for other in range(last) if rank == last else ():
        dist.recv(torch.zeros(1), src=other, tag=own_tag)
    start()
    if rank < last:
        dist.send(torch.zeros(1), dst=last, tag=own_tag)


def meet() -> None:
    """Wait for every rank. Made of messages, because a barrier is matched in order with the all-reduces."""
    last = dist.get_world_size() - 1
    if dist.get_rank() < last:
        dist.send(torch.zeros(1), dst=last)
        dist.recv(torch.zeros(1), src=last)
    else:
        hear_from_all_others()
        for rank in range(last):
            dist.send(torch.zeros(1), dst=rank)


def hear_from_all_others() -> None:
    """On the last rank: receive a message from each of the other ranks."""
    for rank in range(dist.get_world_size() - 1):
        dist.recv(torch.zeros(1), src=rank)


def starts_in_time(moments: str, action: str, op: str = "all_reduce") -> Rule:
    """Require that, at each message of the trial, a rank has started as many calls of `op` as the reference.

    Args:
        moments: when the trial sends and receives, for the learner.
        action: one next step.
        op: the collective.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        expected, yours = ([_started(calls, op) for calls in seen.calls] for seen in (trial.expected, trial.yours))
        late = [
            rank
            for rank, counts in enumerate(zip(yours, expected, strict=True))
            if any(mine < theirs for mine, theirs in zip(*counts, strict=True))
        ]
        if late:
            yield Finding(
                observed=f"On {trial.who(late)}, {op} started later than possible. The table shows how many were "
                f"started {moments}.",
                action=action,
                table=tuple(
                    Row(rank=rank, expected=_listed(expected[rank]), yours=_listed(yours[rank]))
                    for rank in range(trial.world_size)
                ),
            )

    return rule


def _started(calls: Sequence[Call], op: str) -> list[int]:
    """Return how many calls of `op` come before each message."""
    ops = [call.op for call in calls]
    return [ops[:place].count(op) for place, other in enumerate(ops) if other in ("send", "recv")]


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "-"
