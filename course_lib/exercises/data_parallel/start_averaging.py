"""The average of a bucket's gradients, in one all-reduce that is not waited for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..checking.rules import same_calls
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import stubs
from .data import DTYPES, draw_shapes, give_gradients, hear_from_all_others, parameters, ranks
from .rules import starts_in_time

Bucket = list[nn.Parameter]
Finish = Callable[[], None]


def start_averaging(bucket: list[nn.Parameter]) -> Callable[[], None]:
    """Start to average the gradients of `bucket` over ranks; return a function that finishes it."""
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in bucket]
    flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    handle = dist.all_reduce(flat, async_op=True)

    def finish() -> None:
        handle.wait()
        pieces = flat.split([param.numel() for param in bucket])
        for param, piece in zip(bucket, pieces, strict=True):
            param.grad = piece.view_as(param)

    return finish


def flattened(bucket: Bucket) -> torch.Tensor:
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in bucket]
    return torch.cat([grad.reshape(-1) for grad in grads])


def divided(bucket: Bucket) -> torch.Tensor:
    return flattened(bucket) / dist.get_world_size()


def pieces(bucket: Bucket, flat: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Each parameter, with its piece of the flat tensor."""
    return zip(bucket, flat.split([param.numel() for param in bucket]), strict=True)


def put_back(bucket: Bucket, flat: torch.Tensor) -> None:
    for param, piece in pieces(bucket, flat):
        param.grad = piece.view(param.shape)


def averaging(
    brought: Callable[[Bucket], torch.Tensor] = divided,
    put: Callable[[Bucket, torch.Tensor], object] = put_back,
    waits: bool = True,
) -> Solution:
    """The average, with a part of it done otherwise: what is reduced, what becomes of it, whether `finish` waits."""

    def start(bucket: Bucket) -> Finish:
        flat = brought(bucket)
        handle = dist.all_reduce(flat, async_op=True)

        def finish() -> None:
            if waits:
                handle.wait()
            put(bucket, flat)

        return finish

    return start


def waits_at_once(bucket: Bucket) -> Finish:
    flat = divided(bucket)
    dist.all_reduce(flat)
    return lambda: put_back(bucket, flat)


def returns_nothing(bucket: Bucket) -> None:
    averaging()(bucket)


def starts_when_finishing(bucket: Bucket) -> Finish:
    flat = divided(bucket)

    def finish() -> None:
        dist.all_reduce(flat)
        put_back(bucket, flat)

    return finish


def stays_at_home(bucket: Bucket) -> Finish:
    flat = divided(bucket)
    return lambda: put_back(bucket, flat)


def one_call_for_each(bucket: Bucket) -> Finish:
    finishes = [start_averaging([param]) for param in bucket]

    def finish() -> None:
        for finish_one in finishes:
            finish_one()

    return finish


def leave_none(bucket: Bucket, flat: torch.Tensor) -> None:
    for param, piece in pieces(bucket, flat):
        if param.grad is not None:
            param.grad.copy_(piece.view(param.shape))


def put_back_flat(bucket: Bucket, flat: torch.Tensor) -> None:
    for param, piece in pieces(bucket, flat):
        param.grad = piece


def take_all_from_the_front(bucket: Bucket, flat: torch.Tensor) -> None:
    for param in bucket:
        param.grad = flat[: param.numel()].view(param.shape)


def into_a_buffer(bucket: Bucket) -> Finish:
    flat = torch.zeros(sum(param.numel() for param in bucket), dtype=bucket[0].dtype)
    places, end = [], 0
    for param in bucket:
        places.append(flat[end : end + param.numel()].view(param.shape))
        end += param.numel()
        if param.grad is not None:
            places[-1].copy_(param.grad)
    handle = dist.all_reduce(flat, async_op=True)

    def finish() -> None:
        handle.wait()
        flat.div_(dist.get_world_size())
        for param, place in zip(bucket, places, strict=True):
            param.grad = place

    return finish


def copy_into_the_gradients(bucket: Bucket, flat: torch.Tensor) -> None:
    for param, piece in pieces(bucket, flat):
        param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        param.grad.copy_(piece.view(param.shape)).div_(dist.get_world_size())


def draw(rng: random.Random, number: int) -> Case:
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number // 2 % 2], rng.getrandbits(32)
    counts = [rng.randint(2, 3) for _ in range(1 + (number > 0))]
    shapes = draw_shapes(rng, sum(counts))
    shapes[0] = (2, 3)
    unused: list[list[int]] = [[] for _ in range(world_size)]
    if number > 0 and world_size > 1:  # on the last rank alone, or on all but the last: see gradients_afterwards
        lacking = slice(-1, None) if rng.random() < 0.5 else slice(0, -1)
        unused[lacking] = [[0, len(shapes) - 1]] * len(unused[lacking])

    def args(rank: int) -> tuple[list[Bucket]]:
        params = parameters(shapes, dtype, seed)
        give_gradients(params, seed, rank, unused[rank])
        return ([params[: counts[0]], params[counts[0] :]][: len(counts)],)

    about = f"{ranks(world_size)}, {len(counts)} bucket{'s' * (len(counts) > 1)}, {dtype}"
    return Case(world_size=world_size, args=args, about=about + ", some gradients missing" * any(unused))


def gradients_afterwards(solution: Solution, buckets: list[Bucket]) -> Any:
    """The gradients, once every bucket is finished. Raises where a rank has finished before the last one had started.

    The last rank starts when all others have done so: who waits in `solution` waits for ever. It also takes its time,
    so that who does not wait to finish is done before it. (That ranks then disagree about a size, where some leave out
    what they lack, shows at the last rank's first call and nowhere else, so it is the same on every run.)
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank == last:
        hear_from_all_others()
        time.sleep(0.02)
    starting = time.perf_counter()
    finishes = [solution(bucket) for bucket in buckets]
    if rank < last:
        dist.send(torch.zeros(1), dst=last)
    for finish in finishes:
        finish()
    finished = time.perf_counter()
    moments = [torch.zeros(2, dtype=torch.float64) for _ in range(last + 1)]
    dist.all_gather(moments, torch.tensor([starting, finished], dtype=torch.float64))
    started, ended = torch.stack(moments).unbind(dim=1)
    if ended.min() < started.max():
        raise RuntimeError("the bucket was finished on one rank before another had started: nobody has waited")
    return [[param.grad for param in bucket] for bucket in buckets]


START_AVERAGING = Exercise(
    name="data_parallel.start_averaging",
    title="One all-reduce for a bucket",
    task="Average the gradients of the parameters in `bucket` over ranks, with one all-reduce for all of them: put "
    "them into one flat tensor one after the other. Do not wait for the all-reduce: return a function that does, and "
    "that then gives each parameter its averaged gradient. A parameter without a gradient brings zeros.",
    stub=stubs.start_averaging,
    reference=start_averaging,
    draw=draw,
    trial=gradients_afterwards,
    inputs_matter=False,
    rules=[
        same_calls(),
        starts_in_time(
            moments="when the function had returned (- where the trial cannot tell)",
            action="Call `dist.all_reduce(flat, async_op=True)` before you return the function that finishes.",
        ),
    ],
    variants={
        "into-a-buffer": into_a_buffer,
        "into-the-gradients": averaging(brought=flattened, put=copy_into_the_gradients),
    },
    mistakes=[
        Mistake(
            id="waits-at-once",
            solution=waits_at_once,
            told="Your function waits for the all-reduce before it returns. Backward would stand still meanwhile; here "
            "a rank even waits for ever, since the last one starts only when all others have returned.",
            action="Pass `async_op=True`, and call the handle's `wait()` in the function that you return.",
        ),
        Mistake(
            id="returns-nothing",
            solution=returns_nothing,
            told="Your function returns None, and what it returns is to be called later: a function that finishes.",
            action="Write `return finish` at the end, without parentheses.",
        ),
        Mistake(
            id="never-waits",
            solution=averaging(waits=False),
            told="The function that finishes does not wait, so it reads the flat tensor before the others' values are "
            "in it: `async_op=True` gives a handle for this.",
            action="Keep the handle, and call its `wait()` first of all when you finish.",
        ),
        Mistake(
            id="starts-when-finishing",
            solution=starts_when_finishing,
            told="The all-reduce is called when the bucket is finished. It was to be under way by then: nothing can "
            "travel between the two calls.",
            action="Call `dist.all_reduce(flat, async_op=True)` before you return the function that finishes.",
        ),
        Mistake(
            id="stays-at-home",
            solution=stays_at_home,
            told="Every rank divides its own gradients, and nothing is added up: there is no all-reduce.",
            action="Call `dist.all_reduce(flat, async_op=True)` on the flat tensor.",
        ),
        Mistake(
            id="one-call-for-each",
            solution=one_call_for_each,
            told="The averages are right, with an all-reduce for each parameter. The point of a bucket is to pay for "
            "one call, not for many.",
            action="Join the gradients with `torch.cat`, and reduce the flat tensor.",
        ),
        Mistake(
            id="sum-for-mean",
            solution=averaging(brought=flattened),
            told="Each gradient is the sum over ranks, and the average was asked for.",
            action="Divide the flat tensor by `dist.get_world_size()`.",
        ),
        Mistake(
            id="skips-where-there-is-none",
            solution=lambda bucket: start_averaging([param for param in bucket if param.grad is not None]),
            told="Parameters without a gradient are left out of the flat tensor, so it has another size on this rank "
            "than on the others.",
            action="Bring zeros for them.",
        ),
        Mistake(
            id="leaves-none",
            solution=averaging(put=leave_none),
            told="A parameter that had no gradient on this rank keeps `grad = None`, though others have averaged one "
            "for it. This rank alone would leave the parameter as it is.",
            action="Give the average to every parameter of the bucket: assign to `param.grad`.",
        ),
        Mistake(
            id="not-put-back",
            solution=averaging(put=lambda bucket, flat: None),
            told="The averages are in the flat tensor, and the gradients of the parameters are what they were: "
            "`torch.cat` copies.",
            action="Cut the flat tensor into pieces when you finish, and give each parameter its own.",
        ),
        Mistake(
            id="flat-gradients",
            solution=averaging(put=put_back_flat),
            told="Each piece of the flat tensor is flat, and a gradient has the shape of its parameter.",
            action="Give the piece that shape: `piece.view_as(param)`.",
        ),
        Mistake(
            id="all-from-the-front",
            solution=averaging(put=take_all_from_the_front),
            told="Every parameter gets a piece from the front of the flat tensor, which is the gradient of the first.",
            action="Go on behind the piece before: `flat.split(numels)` gives all pieces in order.",
        ),
        Mistake(
            id="float32-buffer",
            solution=averaging(brought=lambda bucket: divided(bucket).float()),
            told="The flat tensor is float32, whatever the gradients are: `torch.zeros` and `torch.empty` make float32 "
            "unless they are told otherwise.",
            action="Use the gradients' dtype, or `torch.cat`, which keeps it.",
        ),
    ],
    hints=[
        "What do ten small letters cost that one large envelope does not?",
        "`torch.cat` of the flattened gradients is one tensor with all of them, and `split` takes it apart again. In "
        "between it travels. A function that is defined inside another sees the other's variables, also later.",
        "`grad.flatten()`, `torch.cat`, `dist.all_reduce(flat, async_op=True)`, `handle.wait()`, `flat.split([numel, "
        "...])`, `piece.view_as(param)`.",
        "```python\ngrads = [torch.zeros_like(param) if param.grad is None else ... for param in bucket]\n"
        "flat = torch.cat([...]) / ...\nhandle = ...\n\ndef finish():\n    handle.wait()\n"
        "    for param, piece in zip(bucket, flat.split([...])):\n        param.grad = ...\n\nreturn finish\n```",
    ],
    explanation="The all-reduce is offered, and the function returns at once, with the second half of the work in a "
    "function that remembers `flat`, `handle` and `bucket`. Between the two, `flat` belongs to the all-reduce: whoever "
    "reads or writes it then gets, or makes, a mixture. A call costs its latency however short its tensor, so one call "
    "for a bucket beats one for each parameter; the price is a copy of the gradients for as long as they travel.",
)
