"""Buckets that leave during backward, each as soon as it is complete."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..checking.rules import same_calls
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size, whole_numbers
from . import during_backward as known
from . import stubs
from .data import DTYPES, Ladder, draw_unused, last_rank_lags_behind, meet, ranks
from .make_buckets import make_buckets
from .rules import starts_in_time
from .start_averaging import start_averaging


def average_during_backward(
    buckets: list[list[nn.Parameter]],
    should_sync: Callable[[], bool],
) -> Callable[[], None]:
    """From now on, average the gradients of `buckets` in every backward in which `should_sync()` is true."""
    arrived: set[nn.Parameter] = set()  # who has its gradient of this backward
    finishes: list[Callable[[], None]] = []  # one for each bucket that was started

    def on_gradient(param: nn.Parameter) -> None:
        if not should_sync():
            return
        arrived.add(param)
        while len(finishes) < len(buckets) and arrived.issuperset(buckets[len(finishes)]):
            finishes.append(start_averaging(buckets[len(finishes)]))

    for bucket in buckets:
        for param in bucket:
            param.register_post_accumulate_grad_hook(on_gradient)

    def finish() -> None:
        for bucket in buckets[len(finishes) :]:
            finishes.append(start_averaging(bucket))
        for finish_bucket in finishes:
            finish_bucket()
        arrived.clear()
        finishes.clear()

    return finish


def draw(rng: random.Random, number: int) -> Case:
    """Two steps in which every layer is used; or one in which some ranks leave some out, with buckets of one size.

    Draw 1 uses the layers in another order than they are listed, and a bucket holds two or more of them: so the last
    parameter of a bucket is not the last that gets its gradient.

    With buckets of one size, a bucket that meets another is summed without a word, and a missing one is missed in the
    end: both are the same on every run.
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
        widths, bucket_numel, steps = [width] * layers, 3 * width, 1
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

    about = f"{ranks(world_size)}, {layers} layers, {steps} step{'s' * (steps > 1)}"
    about += ", 2 micro-batches a step" * (micro_batches > 1) + ", some layers unused on one rank" * any(unused)
    about += ", layers used in another order than listed" * (number == 1)
    return Case(world_size=world_size, args=args, about=about)


def gradients_of_each_step(
    solution: Solution, model: Ladder, bucket_bytes: int, batches: list[list[Tensor]]
) -> list[dict[str, Any]]:
    sync = False
    finish = solution(make_buckets(list(model.parameters()), bucket_bytes), lambda: sync)
    seen = []
    for *quiet, final in batches:
        for batch in quiet:
            model(batch).mean().backward()
        sync = True
        model(final).mean().backward()
        meet()
        finish()
        sync = False
        grads = {name: param.grad for name, param in model.named_parameters()}
        seen.append({name: None if grad is None else grad.clone() for name, grad in grads.items()})
        model.zero_grad()
    return seen


AVERAGE_DURING_BACKWARD = Exercise(
    name="data_parallel.average_during_backward",
    title="Average during backward",
    task="Register hooks that see each gradient as it arrives. As soon as a bucket and those before it have all their "
    "gradients, start it with your `start_averaging`, and let backward go on. Return a function `finish`, which is "
    "called after backward: it starts the buckets that are not started yet (some parameters may have no gradient in "
    "this backward, on this rank alone), and finishes all. Every rank starts the buckets in their order. Where "
    "`should_sync()` is false, a backward starts nothing; gradients add up in `param.grad` as they always do.",
    stub=stubs.average_during_backward,
    reference=average_during_backward,
    draw=draw,
    trial=gradients_of_each_step,
    inputs_matter=False,
    rules=[
        same_calls(),
        starts_in_time(
            moments="by certain moments, from layer to layer in backward and at its end",
            action="Follow one rank through one backward: which gradient completes a bucket, and what happens then?",
        ),
    ],
    variants={"with-counters": known.with_counters, "with-an-object": known.with_an_object},
    mistakes=[
        Mistake(
            id="all-at-the-end",
            solution=known.all_at_the_end,
            told="The averages are right, and every bucket is started after backward. So nothing travels while "
            "backward computes.",
            action="Register a hook for each parameter, ask `should_sync()` in it and not before, and start a bucket "
            "when it is complete.",
        ),
        Mistake(
            id="with-the-last-gradient",
            solution=known.reducing(ready=known.all_have_arrived),
            told="All buckets are started when the last gradient has arrived. By then backward is over, and there is "
            "nothing left to overlap with.",
            action="Look, at each gradient, whether the next bucket is complete.",
        ),
        Mistake(
            id="by-the-last-listed",
            solution=known.reducing(ready=known.last_listed_has_arrived),
            told="A bucket is started when its last listed parameter gets its gradient. Gradients arrive in the order "
            "of backward, and here that is not the order of the list: others of the bucket are still missing.",
            action="Start a bucket when all of its gradients have arrived, in whatever order.",
        ),
        Mistake(
            id="finishes-at-once",
            solution=known.reducing(start=known.start_and_finish),
            told="A bucket is finished as soon as it is started, inside the hook. So backward waits for every bucket, "
            "and for the slowest rank each time.",
            action="Keep what `start_averaging` returns in a list, and call it in `finish`.",
        ),
        Mistake(
            id="as-they-complete",
            solution=known.as_they_complete,
            told="Buckets are started in the order in which they become complete. A rank that lacks a gradient "
            "completes them in another order, and then one rank's bucket meets another bucket of its peers.",
            action="Start a bucket only when all buckets before it are started.",
        ),
        Mistake(
            id="finish-starts-nothing",
            solution=known.reducing(starts_the_rest=False),
            told="A bucket that lacks a gradient on this rank is never started here, nor are those after it, and the "
            "other ranks wait for them.",
            action="In `finish`, start whatever is not started yet: `start_averaging` brings zeros where a gradient is "
            "missing.",
        ),
        Mistake(
            id="reduces-in-the-hook",
            solution=known.reduces_in_the_hook,
            told="Each hook all-reduces its gradient and waits for it, so backward stands still at every parameter, "
            "and there is a call for each.",
            action="Start whole buckets with `start_averaging`, and finish them in `finish`.",
        ),
        Mistake(
            id="one-call-for-each",
            solution=known.one_call_for_each,
            told="Each gradient is started by itself, as it arrives. There is a call for each parameter, as if there "
            "were no buckets.",
            action="Wait until a bucket has all its gradients, and start the bucket.",
        ),
        Mistake(
            id="always-syncs",
            solution=known.always_syncs,
            told="Buckets are started in a backward in which `should_sync()` is false. What later micro-batches add is "
            "then never averaged.",
            action="Ask `should_sync()` in the hook, each time, and do nothing where it is false.",
        ),
        Mistake(
            id="averages-nothing",
            solution=lambda buckets, should_sync: lambda: None,
            told="No bucket is ever started. If you ask `should_sync()` when the hooks are registered, you get the "
            "answer of that moment, and before the first backward it is no.",
            action="Register the hooks in any case, and ask `should_sync()` in them, each time.",
        ),
        Mistake(
            id="counts-quiet-backwards",
            solution=known.reducing(counts_quiet=True),
            told="Gradients of a backward without communication count as arrived, so in the next one a bucket seems "
            "complete before its gradients have come.",
            action="Where `should_sync()` is false, leave the hook before anything is counted.",
        ),
        Mistake(
            id="never-begins-anew",
            solution=known.reducing(forgets=()),
            told="From the second step on nothing is started, and the averages of the first step are put into the "
            "gradients again: what was started is still in your list.",
            action="Clear what you have counted and started at the end of `finish`.",
        ),
        Mistake(
            id="keeps-who-arrived",
            solution=known.reducing(forgets=("started",)),
            told="In the second step all gradients seem to have arrived when the first one comes: those of the step "
            "before still count.",
            action="Begin to count anew at the end of `finish`.",
        ),
        Mistake(
            id="before-the-gradient-is-there",
            solution=known.reducing(register=known.hook_too_early),
            told="`register_hook` calls you before the gradient is in `param.grad`, so what completes a bucket is not "
            "in it.",
            action="Use `register_post_accumulate_grad_hook`.",
        ),
        Mistake(
            id="all-count-for-the-last",
            solution=known.all_count_for_the_last,
            told="All gradients count for the last bucket. A function that is defined in a loop sees the loop's "
            "variable as it is when it is called, and then the loop has ended.",
            action="Bind the value at definition: `lambda param, index=index: ...`, or `functools.partial`.",
        ),
        Mistake(
            id="by-the-first-gradient",
            solution=known.by_the_first_gradient,
            told="A bucket is started when the first of its gradients arrives; the others are not in it yet.",
            action="Start it when all of its gradients have arrived.",
        ),
    ],
    hints=[
        "Which gradients does backward compute first? How far has it come when the first bucket is complete?",
        "Let each gradient report its arrival. Remember who has arrived, and how many buckets are started: the next in "
        "line may go when all of its parameters have arrived. Afterwards, who is not started is started, in order.",
        "`param.register_post_accumulate_grad_hook(fn)` calls `fn(param)` when `param.grad` is complete. A set of "
        "parameters has `issuperset(bucket)`.",
        "```python\narrived, finishes = set(), []\n\ndef on_gradient(param):\n    if not should_sync():\n        "
        "return\n    arrived.add(param)\n    while len(finishes) < len(buckets) and arrived.issuperset(...):\n"
        "        finishes.append(...)\n\n...  # register it for every parameter\n\ndef finish():\n"
        "    ...  # start the rest, finish all, begin anew\n\nreturn finish\n```",
    ],
    explanation="`len(finishes)` is the number of the next bucket, so buckets leave in the same order on every rank, "
    "whichever gradients a rank lacks: `while` rather than `if`, because one gradient can free several that waited in "
    "line. A rank cannot know that a gradient will never come until backward is over, which is why `finish` starts the "
    "rest. torch's DDP does the same in C++, and has to be told to expect it, with `find_unused_parameters=True`.",
)
