"""One bucket's gradients: sent without waiting, averaged, added to the shard, and freed."""

# mypy: disable-error-code="assignment"
# (a variable that holds a tensor holds None once the tensor is freed)

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ...meter import mark
from ..checking.rules import same_calls
from ..data_parallel.data import hear_from_all_others, ranks
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size, dtype_name, whole_numbers
from . import stubs
from .bucket import Bucket
from .data import DTYPES, draw_shapes, grad_shard, parameters, poisoned_bucket
from .rules import keeps_no_more

Finish = Callable[[], None]


def start_reduction(bucket: Bucket) -> Callable[[], None]:
    """Start to reduce-scatter `bucket.flat_grad`, without waiting; return a function that finishes it."""
    flat_grad = bucket.flat_grad if bucket.flat_grad is not None else torch.zeros_like(bucket.flat_param)
    bucket.flat_grad = None
    grad_shard = torch.empty_like(bucket.param_shard)
    handle = dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)

    def finish() -> None:
        nonlocal flat_grad
        handle.wait()
        flat_grad = None  # it has been sent: nothing whole is left
        average = grad_shard / dist.get_world_size()
        earlier = bucket.param_shard.grad
        bucket.param_shard.grad = average if earlier is None else earlier + average

    return finish


Store = Callable[[Bucket, Tensor], None]


def add(bucket: Bucket, average: Tensor) -> None:
    earlier = bucket.param_shard.grad
    bucket.param_shard.grad = average if earlier is None else earlier + average


def add_average(bucket: Bucket, total: Tensor) -> None:
    add(bucket, total / dist.get_world_size())


def or_zeros(bucket: Bucket) -> Tensor:
    return bucket.flat_grad if bucket.flat_grad is not None else torch.zeros_like(bucket.flat_param)


def reduction(bucket: Bucket, store: Store = add_average) -> Finish:
    """A right solution, but for what is done with the sum over ranks."""
    flat_grad = or_zeros(bucket)
    bucket.flat_grad = None
    total = torch.empty_like(bucket.param_shard)
    handle = dist.reduce_scatter_single(total, flat_grad, async_op=True)

    def finish() -> None:
        handle.wait()
        store(bucket, total)

    return finish


def overwrites(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        bucket.param_shard.grad = total / dist.get_world_size()

    return reduction(bucket, store)


def keeps_the_first(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        if bucket.param_shard.grad is None:
            add_average(bucket, total)

    return reduction(bucket, store)


def adds_to_none(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        bucket.param_shard.grad += total / dist.get_world_size()  # type: ignore[operator]

    return reduction(bucket, store)


def sum_for_mean(bucket: Bucket) -> Finish:
    return reduction(bucket, add)


def divides_what_was_there(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        add(bucket, total)
        assert bucket.param_shard.grad is not None
        bucket.param_shard.grad /= dist.get_world_size()

    return reduction(bucket, store)


def adds_twice(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        add_average(bucket, total)
        add_average(bucket, total)

    return reduction(bucket, store)


def waits_at_once(bucket: Bucket) -> Finish:
    came: list[Tensor] = []
    reduction(bucket, lambda bucket, total: came.append(total))()
    return lambda: add_average(bucket, came.pop())


def never_waits(bucket: Bucket) -> Finish:
    flat_grad = or_zeros(bucket)
    bucket.flat_grad = None
    shard = torch.zeros_like(bucket.param_shard)
    handle = dist.reduce_scatter_single(shard, flat_grad, async_op=True)
    before = shard.clone()  # as it is when nobody waits: on every run the same

    def finish() -> None:
        handle.wait()
        add(bucket, before)

    return finish


def keeps_what_was_sent(bucket: Bucket) -> Finish:
    flat_grad = or_zeros(bucket)
    finish = reduction(bucket)
    bucket.flat_grad = flat_grad
    return finish


def lets_go_at_the_end(bucket: Bucket) -> Finish:
    finish_sending = keeps_what_was_sent(bucket)

    def finish() -> None:
        finish_sending()
        bucket.flat_grad = None

    return finish


def zeroes_what_was_sent(bucket: Bucket) -> Finish:
    finish_sending = keeps_what_was_sent(bucket)

    def finish() -> None:
        finish_sending()
        or_zeros(bucket).zero_()

    return finish


def kept_by_the_closure(bucket: Bucket) -> Finish:
    flat_grad = or_zeros(bucket)
    finish_sending = reduction(bucket)

    def finish() -> None:
        finish_sending()
        assert flat_grad is not None

    return finish


def shard_of_the_whole(bucket: Bucket) -> Finish:
    flat_grad = or_zeros(bucket)

    def store(bucket: Bucket, total: Tensor) -> None:
        part = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].copy_(total)
        add(bucket, part.div_(dist.get_world_size()))

    return reduction(bucket, store)


def all_reduce_and_cut(bucket: Bucket) -> Finish:
    flat_grad = or_zeros(bucket)
    bucket.flat_grad = None
    handle = dist.all_reduce(flat_grad, async_op=True)

    def finish() -> None:
        handle.wait()
        add(bucket, (flat_grad / dist.get_world_size()).chunk(dist.get_world_size())[dist.get_rank()])

    return finish


def silent_ranks_stay_away(bucket: Bucket) -> Finish:
    return reduction(bucket) if bucket.flat_grad is not None else lambda: None


def sends_none(bucket: Bucket) -> Finish:
    if bucket.flat_grad is None:
        dist.reduce_scatter_single(torch.empty_like(bucket.param_shard), bucket.flat_grad, async_op=True)
    return reduction(bucket)


def parameters_for_zeros(bucket: Bucket) -> Finish:
    if bucket.flat_grad is None:
        bucket.flat_grad = bucket.flat_param.clone()
    return reduction(bucket)


def into_the_parameters(bucket: Bucket) -> Finish:
    def store(bucket: Bucket, total: Tensor) -> None:
        bucket.param_shard.data.copy_(total / dist.get_world_size())

    return reduction(bucket, store)


def divides_before(bucket: Bucket) -> Finish:
    world_size = dist.get_world_size()
    if bucket.flat_grad is None:
        bucket.flat_grad = bucket.flat_param.new_zeros(bucket.flat_param.shape)
    sending, bucket.flat_grad = bucket.flat_grad / world_size, None
    received = sending.new_empty(len(sending) // world_size)
    work = dist.reduce_scatter_single(received, sending, async_op=True)

    def finish() -> None:
        work.wait()
        if bucket.param_shard.grad is None:
            bucket.param_shard.grad = torch.zeros_like(bucket.param_shard)
        bucket.param_shard.grad += received

    return finish


class Reduction:
    """A reduction that is under way, as an object."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.flat_grad = torch.zeros_like(bucket.flat_param) if bucket.flat_grad is None else bucket.flat_grad
        bucket.flat_grad = None
        self.shard = torch.zeros_like(bucket.param_shard.detach())
        self.work = dist.reduce_scatter_single(self.shard, self.flat_grad, async_op=True)

    def finish(self) -> None:
        self.work.wait()
        del self.flat_grad
        self.shard.div_(dist.get_world_size())
        if self.bucket.param_shard.grad is not None:
            self.shard.add_(self.bucket.param_shard.grad)
        self.bucket.param_shard.grad = self.shard


def with_an_object(bucket: Bucket) -> Finish:
    return Reduction(bucket).finish


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, dtype = draw_world_size(rng, number), rng.getrandbits(32), DTYPES[number % 2]
    shapes, backwards = draw_shapes(rng, world_size), 1 if number == 0 else 3
    # In the last backward of some cases a rank has no gradient at all.
    silent = rng.randrange(world_size) if number in (1, 2, 5) else None

    def args(rank: int) -> tuple[Bucket, list[list[Tensor]]]:
        bucket = poisoned_bucket(parameters(shapes, dtype, seed))
        backward_grads = [
            [whole_numbers(*shape, seed=seed + 10 * backward, rank=100 * rank, dtype=dtype) for shape in shapes]
            for backward in range(backwards)
        ]
        if rank == silent:
            backward_grads[-1] = []
        return bucket, backward_grads

    numel = sum(torch.Size(shape).numel() for shape in shapes)
    about = f"{ranks(world_size)}, a bucket of {numel} elements, {dtype_name(dtype)}"
    about += f", {backwards} backwards" * (backwards > 1)
    about += f", in the last of which rank {silent} has no gradient" * (silent is not None)
    return Case(world_size=world_size, args=args, about=about)


def shards_of_each_backward(
    solution: Solution, bucket: Bucket, backward_grads: Sequence[Sequence[Tensor]]
) -> list[dict[str, Tensor | None]]:
    """What the bucket holds of each backward. The last rank starts when `solution` has returned on all others."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    shards = []
    for backward, grads in enumerate(backward_grads, start=1):
        for number, grad in enumerate(grads):
            bucket.add(number, grad)
        if rank == last:
            hear_from_all_others()
        finish = solution(bucket)
        if rank < last:
            dist.send(torch.zeros(1), dst=last)
        flat_grad = None if bucket.flat_grad is None else bucket.flat_grad.clone()
        finish()
        mark(f"After backward {backward}, with the reduction finished")
        shards.append({"flat_grad when started": flat_grad, "shard when finished": grad_shard(bucket)})
    return shards


START_REDUCTION = Exercise(
    name="zero2.start_reduction",
    title="Reduce a bucket",
    task="Start to reduce-scatter `bucket.flat_grad`, with `dist.reduce_scatter_single` and `async_op=True`, and do "
    "not wait. The bucket has no `flat_grad` from then on, so that the next backward begins with an empty one. Where "
    "it is None already, this rank brings zeros. Return a function that waits, and then **adds** the average over "
    "ranks to `bucket.param_shard.grad`, which is None before the first backward of a step. When it has ended, nothing "
    "whole is in memory, even if somebody keeps the function.",
    stub=stubs.start_reduction,
    reference=start_reduction,
    draw=draw,
    trial=shards_of_each_backward,
    inputs_matter=False,
    measured=True,
    rules=[same_calls(), keeps_no_more],
    variants={"divides-before": divides_before, "with-an-object": with_an_object},
    mistakes=[
        Mistake(
            id="overwrites",
            solution=overwrites,
            told="The average takes the place of those of earlier backwards. So of several micro-batches, only the "
            "last one counts.",
            action="Add it to `bucket.param_shard.grad` where that is not None.",
        ),
        Mistake(
            id="keeps-the-first",
            solution=keeps_the_first,
            told="Only the first average is stored. Those of later backwards are computed and dropped.",
            action="Add the average where `bucket.param_shard.grad` is not None.",
        ),
        Mistake(
            id="adds-to-none",
            solution=adds_to_none,
            told="Before the first backward of a step there is nothing to add to: `bucket.param_shard.grad` is None.",
            action="Where it is None, store the average.",
        ),
        Mistake(
            id="sum-for-mean",
            solution=sum_for_mean,
            told="You add the sum over ranks. One process with the whole batch would have the mean.",
            action="Divide by `dist.get_world_size()`.",
        ),
        Mistake(
            id="divides-what-was-there",
            solution=divides_what_was_there,
            told="You add the sum and divide the result: with it you divide, once more, what earlier backwards have "
            "left there. The older a micro-batch is, the less it counts.",
            action="Divide the new sum alone, before you add it.",
        ),
        Mistake(
            id="adds-twice",
            solution=adds_twice,
            told="The average is added twice, so each backward counts double.",
            action="Add it once; where `bucket.param_shard.grad` is None, store it and add nothing.",
        ),
        Mistake(
            id="waits-at-once",
            solution=waits_at_once,
            told="You wait before you return. Backward would stand still until every rank has come this far, and "
            "until all bytes are there.",
            action="Call `handle.wait()` in the function that you return.",
        ),
        Mistake(
            id="never-waits",
            solution=never_waits,
            told="You read the shard before it has come: `async_op=True` returns at once, and the numbers follow.",
            action="Call `handle.wait()` before you use the shard.",
        ),
        Mistake(
            id="keeps-what-was-sent",
            solution=keeps_what_was_sent,
            told="The bucket still has its `flat_grad`. The whole gradient stays in memory, and the next backward "
            "adds to it, so it is sent a second time.",
            action="Set `bucket.flat_grad = None` when the reduction is started; it lives on until it has been sent.",
        ),
        Mistake(
            id="lets-go-at-the-end",
            solution=lets_go_at_the_end,
            told="The bucket keeps its `flat_grad` until the reduction is finished. Gradients of the next backward "
            "may come before that: they would be added to what is on its way.",
            action="Set `bucket.flat_grad = None` before you return; a variable of yours keeps it until it has been "
            "sent.",
        ),
        Mistake(
            id="zeroes-what-was-sent",
            solution=zeroes_what_was_sent,
            told="You set `flat_grad` to zero after it has been sent. The numbers are right, and the memory is not "
            "freed: zeros take as much as any numbers.",
            action="Set `bucket.flat_grad = None` instead. `add` makes a new one when it is needed.",
        ),
        Mistake(
            id="kept-by-the-closure",
            solution=kept_by_the_closure,
            told="The function that you return closes over the whole gradient. Whoever keeps the function keeps the "
            "gradient, also when it has been sent.",
            action="Let go of it after the wait: `nonlocal flat_grad` at the top of that function, and then "
            "`flat_grad = None`.",
        ),
        Mistake(
            id="shard-of-the-whole",
            solution=shard_of_the_whole,
            told="The shard's gradient is a view of the whole one, and a view keeps all of its memory.",
            action="Reduce into a tensor of its own, `torch.empty_like(bucket.param_shard)`, and store that.",
        ),
        Mistake(
            id="all-reduce-and-cut",
            solution=all_reduce_and_cut,
            told="Right numbers, from an all-reduce: every rank gets the whole sum, at twice the bytes, and keeps one "
            "part of it. A part is a view, so that all the rest stays in memory with it.",
            action="Use `dist.reduce_scatter_single`: each rank gets its shard alone.",
        ),
        Mistake(
            id="silent-ranks-stay-away",
            solution=silent_ranks_stay_away,
            told="A rank without a gradient does not call the reduce-scatter, and the others wait for it.",
            action="Let it bring zeros: `torch.zeros_like(bucket.flat_param)`.",
        ),
        Mistake(
            id="sends-none",
            solution=sends_none,
            told="A rank without a gradient has `flat_grad` None, and you give that to the collective.",
            action="Use zeros there: `torch.zeros_like(bucket.flat_param)`.",
        ),
        Mistake(
            id="parameters-for-zeros",
            solution=parameters_for_zeros,
            told="A rank without a gradient brings its parameters as if they were one.",
            action="Use zeros: `torch.zeros_like(bucket.flat_param)`.",
        ),
        Mistake(
            id="into-the-parameters",
            solution=into_the_parameters,
            told="You write the average into the parameters. They wait for the optimizer; the average goes into "
            "`bucket.param_shard.grad`.",
            action="Add it to `bucket.param_shard.grad`.",
        ),
    ],
    hints=[
        "Which tensor holds N times as much as this rank needs in the end? At which moment is it last used?",
        "Two moments: the start, in backward, and the finish, later. What both need lives in variables of the outer "
        "function. What several backwards leave is added up, shard by shard.",
        "`dist.reduce_scatter_single(shard, flat_grad, async_op=True)` gives a handle with `wait()`. Make the shard "
        "with `torch.empty_like(bucket.param_shard)`.",
        "```python\nflat_grad = ...  # or zeros\nbucket.flat_grad = None\ngrad_shard = "
        "torch.empty_like(bucket.param_shard)\nhandle = dist.reduce_scatter_single(..., async_op=True)\n\n"
        "def finish():\n    handle.wait()\n    average = ...\n    ...  # store it, or add it\n\nreturn finish\n```",
    ],
    explanation="The reduce-scatter leaves each rank with the sum of its own shard, which is all that its optimizer "
    "needs. `nonlocal flat_grad; flat_grad = None` says at which line the whole gradient is freed: not before the "
    "wait, since it is on its way until then. What is added up over micro-batches is the average, 1/N of the gradient. "
    "That is why ZeRO-2 cannot put communication off to the last micro-batch, as data parallel does: to wait, it would "
    "have to keep whole gradients.",
)
