"""Buckets that are averaged during backward, each as soon as it is complete."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...exercises import Exercise, Solution, same_calls
from .data import Ladder, draw_ladder_case, meet, starts_in_time
from .make_buckets import make_buckets
from .start_averaging import start_averaging


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
        model.used = set(range(len(model.layers)))
    return seen


exercise = Exercise("data_parallel.average_during_backward", title="Average during backward", draw=draw_ladder_case,
    trial=gradients_of_each_step, asynchronous=True, inputs_matter=False, rules=[same_calls(), starts_in_time(
        moments="by certain moments, from layer to layer in backward and at its end",
        action="Follow one rank through one backward: which gradient completes a bucket, and what happens then?",
    )], task="""
    Register hooks that run when a gradient is complete. As soon as a bucket and all buckets before it have all their
    gradients, start it with your `start_averaging`, one all-reduce for each bucket, and let backward continue. Every
    rank starts the buckets in their order. Return a function `finish`, which is called after backward: it starts the
    buckets that are not started yet, and finishes all. (In a backward, a parameter may have no gradient, on one rank
    only.) While `should_sync()` is false, a backward pass starts nothing;
    gradients add up in `param.grad` as usual.""", hints="""
    Which gradients does backward compute first? How far has it come when the first bucket is complete?

    Let a hook record each gradient. Remember which parameters have their gradient and how many buckets are started.
    Start the next bucket when all of its parameters have theirs. After backward, start the remaining ones, in order.

    `param.register_post_accumulate_grad_hook(fn)` calls `fn(param)` when `param.grad` is complete. A set of parameters
    has `issuperset(bucket)`.

    ```python
    arrived, finishes = set(), []

    def on_gradient(param):
        if not should_sync():
            return
        arrived.add(param)
        while len(finishes) < len(buckets) and arrived.issuperset(...):
            finishes.append(...)

    ...  # register it for every parameter

    def finish():
        ...  # start the rest, finish all, reset

    return finish
    ```
    """, explanation="""
    `len(finishes)` is the number of the next bucket, so all ranks start the buckets in the same order, whichever
    gradients a rank lacks. It takes `while` instead of `if` because one gradient can release several buckets that were
    waiting. Only the end of backward shows your hooks that a gradient will not come, so `finish` starts the rest.
    torch's DDP, with `find_unused_parameters=True`, searches autograd's graph at the end of forward and counts the
    parameters that are not in it as ready, so no bucket waits for them. The search costs time in each step.""")


@exercise
def average_during_backward(
    buckets: list[list[nn.Parameter]],
    should_sync: Callable[[], bool],
) -> Callable[[], None]:
    """Average the gradients of `buckets` in every later backward in which `should_sync()` is true.

    Start each bucket as soon as it and all buckets before it have all their gradients of that backward.
    Return a function that is called after such a backward: it starts the remaining buckets and
    finishes all. In other backward passes, gradients add up on their rank and nothing is sent.
    """
    arrived: set[nn.Parameter] = set()
    finishes: list[Callable[[], None]] = []  # one for each started bucket

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


REGISTER = "for bucket in buckets:\nfor param in bucket:\nparam.register_post_accumulate_grad_hook(on_gradient)"
IN_ORDER = "while len(finishes) < len(buckets) and arrived.issuperset(buckets[len(finishes)]):"
COMPLETE = "arrived.issuperset(buckets[len(finishes)])"
START = "finishes.append(start_averaging(buckets[len(finishes)]))"
THE_REST = "for bucket in buckets[len(finishes) :]:\nfinishes.append(start_averaging(bucket))\n"

EACH_BY_ITSELF = (
    "if any(param is one for one in bucket) and arrived.issuperset(bucket):\n"
    "    finishes.append(start_averaging(bucket))"
)

exercise.edit("all-at-the-end", {f"{REGISTER}\n": ""}, """
    The averages are right, but every bucket is started after backward, so nothing travels while backward computes. No
    hook starts a bucket, or all hooks, made in a loop, count for its last bucket. Next: register a hook for each
    parameter, ask `should_sync()` inside the hook, and start a bucket when it is complete.""")

exercise.edit("by-the-last-listed", {COMPLETE: "buckets[len(finishes)][-1] in arrived"}, """
    You start a bucket when its last listed parameter gets its gradient. Gradients arrive in the order of backward,
    which can differ from the order of the list: some gradients of the bucket are still missing.
    Next: start a bucket when all of its gradients have arrived, in any order.""")

exercise.edit("one-at-a-time", {IN_ORDER: IN_ORDER.replace("while", "if")}, """
    Each gradient starts at most one bucket. If a gradient completes a bucket that complete ones are waiting for, they
    have to wait longer. Next: after you start a bucket, look at the next one again, until one is incomplete.""")

exercise.edit("finishes-at-once", {START:
    "start_averaging(buckets[len(finishes)])()\nfinishes.append(lambda: None)"}, """
    You finish a bucket as soon as you start it, inside the hook. So backward waits for every bucket, and each time for
    the slowest rank. Next: keep what `start_averaging` returns in a list, and call it in `finish`.""")

exercise.edit("as-they-complete", {IN_ORDER: "for bucket in buckets:",
    START: EACH_BY_ITSELF,
    "for bucket in buckets[len(finishes) :]:": "for bucket in [b for b in buckets if not arrived.issuperset(b)]:"}, """
    You start buckets in the order in which they become complete. On a rank that lacks a gradient this order differs,
    and then different buckets are summed. Next: start a bucket only when all buckets before it are started.""")

exercise.edit("finish-starts-nothing", {THE_REST: ""}, """
    A bucket that lacks a gradient on this rank is never started here, nor are the buckets after it, and the other ranks
    wait for them.
    Next: start the remaining buckets in `finish`; `start_averaging` uses zeros for a missing gradient.""")

exercise.edit("the-rest-reversed", {"for bucket in buckets[len(finishes) :]:":
    "for bucket in reversed(buckets[len(finishes) :]):"}, """
    `finish` starts the remaining buckets in a different order. On a rank that has all gradients, the hooks have started
    them in their order, and then different buckets are summed. Next: start the remaining buckets in the order of
    `buckets`, too.""")

exercise.edit("each-bucket-for-itself", {IN_ORDER: "for bucket in buckets:", START: EACH_BY_ITSELF, THE_REST: ""}, """
    Each bucket starts by itself when it is complete, and `finish` only waits. A bucket that lacks a gradient on this
    rank is never started here. Other ranks wait for it, or different buckets are summed.
    Next: start the remaining buckets in `finish`, and start each bucket only when all buckets before it are started.
    """)

exercise.edit("always-syncs", {"if not should_sync():\nreturn\n": ""}, """
    You start buckets in a backward pass in which `should_sync()` is false, so the gradients of later micro-batches
    are not averaged. Next: call `should_sync()` in the hook, each time, and do nothing if it is false.""")

exercise.edit("counts-quiet-backwards", {"if not should_sync():\nreturn\narrived.add(param)":
    "arrived.add(param)\nif not should_sync():\n    return"}, """
    Gradients of a backward pass in which `should_sync()` is false count, too: you record them, or you test whether
    `param.grad` is None, and it still has them. In the next backward, a bucket then seems complete before its new
    gradients are there. Next: record in the hook which gradients arrive, and only while `should_sync()` is true.""")

exercise.edit("never-begins-anew", {"\narrived.clear()\nfinishes.clear()": ""}, """
    From the second step on, nothing is started, and `finish` puts the averages of the first step into the gradients
    again. Next: at the end of `finish`, clear what you counted and started.""")

exercise.edit("keeps-who-arrived", {"arrived.clear()\n": ""}, """
    In the second step, all gradients seem to have arrived when the first one does: you still count those of the first
    step. Next: at the end of `finish`, clear what you counted, too.""")

exercise.edit("before-the-gradient-is-there", {"param.register_post_accumulate_grad_hook(on_gradient)":
    "param.register_hook(lambda _, param=param: on_gradient(param))"}, """
    A bucket starts before its last new gradient is in `param.grad`: you count one too few, or your hook runs too early.
    `register_hook` calls a function before the gradient is there.
    Next: use `register_post_accumulate_grad_hook`, and start a bucket when no gradient is missing.""")

exercise.edit("all-count-for-the-last", {"arrived: set[nn.Parameter] = set()": "missing = [len(b) for b in buckets]",
    f"arrived.add(param)\n{IN_ORDER}\n{START}":
    "missing[index] -= 1\nif missing[index] == 0:\n    finishes.append(start_averaging(buckets[index]))",
    "for bucket in buckets:\n": "for index, bucket in enumerate(buckets):\n    ",
    "for bucket in buckets[len(finishes) :]:": "for bucket in [b for b, m in zip(buckets, missing) if m > 0]:",
    "arrived.clear()": "missing[:] = [len(b) for b in buckets]"}, """
    All gradients count for the last bucket. A function that is defined in a loop sees the loop's variable at the time
    of the call, and by then the loop has ended.
    Next: bind the value when you define the function, with a default argument or `functools.partial`.""")

exercise.variant_edit("with-counters", {"arrived: set[nn.Parameter] = set()": "missing = [len(b) for b in buckets]",
    "arrived.add(param)": "for index, bucket in enumerate(buckets):\n"
    "    missing[index] -= sum(param is one for one in bucket)",
    COMPLETE: "not missing[len(finishes)]", "arrived.clear()": "missing[:] = [len(b) for b in buckets]"})

exercise.variant_edit("takes-them-off-the-list", {COMPLETE: "all(p in arrived for p in buckets[len(finishes)])",
    "for finish_bucket in finishes:\nfinish_bucket()\n": "while finishes:\n    finishes.pop(0)()\n",
    "\nfinishes.clear()": ""})
