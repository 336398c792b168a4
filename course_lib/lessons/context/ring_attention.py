"""Attention over a sequence whose keys and values travel around a ring."""

import random
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Finding, Row, Trial, draw_world_size, lets_go, normal, sends_no_more
from ...meter import mark
from ...world import Call
from .data import attend
from .merge import merge

LAST = "when it computes with the last block"
MANY_RANKS = 8
TOKENS = 16
ROOM = 11 * (2 * TOKENS * 4) // 2
"""Bytes of five and a half blocks in the case with many ranks. Who keeps all blocks, or all results, takes six more
than the reference: with vectors of size 1, a result is as large as a block."""


def draw(rng: random.Random, number: int) -> Case:
    """Draw few ranks; but many in draw 4, where it shows who keeps every block."""
    world_size, tokens, size = draw_world_size(rng, number), rng.randint(2, 4), rng.randint(2, 4)
    if number == 4:
        world_size, tokens, size = MANY_RANKS, TOKENS, 1
    seed = rng.getrandbits(31)

    def args(rank: int) -> tuple[Tensor, Tensor, Callable[..., tuple[Tensor, Tensor]]]:
        query, key, value = normal(3, tokens, size, seed=seed + rank)
        blocks_left = iter(range(world_size - 1))

        def attend_and_mark(query: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
            if next(blocks_left, None) is None:
                mark(LAST)
            return attend(query, block)

        return query, torch.stack([key, value]), attend_and_mark

    return Case(world_size=world_size, args=args, what=f"{tokens} tokens a rank")


def travels_while_it_computes(trial: Trial) -> Iterator[Finding]:
    """Require that each block is sent before the rank computes with it."""
    expected, yours = ([_sent_before(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
    late = [
        rank
        for rank, counts in enumerate(zip(yours, expected, strict=True))
        if any(mine < theirs for mine, theirs in zip(*counts, strict=False))
    ]
    if late:
        yield Finding(
            observed=f"{trial.who(late)} had started fewer sends than the reference when `attend` was called. The "
            "table shows how many, at each call.",
            action="Start the send and the receive before `attend`, and wait for them after it.",
            table=tuple(
                Row(rank=rank, expected=_listed(expected[rank]), yours=_listed(yours[rank]))
                for rank in range(trial.world_size)
            ),
        )


def waits_after_computing(trial: Trial) -> Iterator[Finding]:
    """Require that a rank waits for a message of a round only when it has computed in this round.

    A wait is seen only if the message is still on its way. At least the first rank has to wait; how many others do
    differs from run to run, so the finding names none.
    """
    if any(map(_waits_first, trial.yours.calls)):
        yield Finding(
            observed="At least one rank waited for a send or a receive of a round before it called `attend` in this "
            "round.",
            action="Start the send and the receive before `attend`, and wait for them after it.",
        )


def to_one_neighbour(trial: Trial) -> Iterator[Finding]:
    """Require a ring, whichever way around: a rank sends to one other rank only."""
    far = [rank for rank, calls in enumerate(trial.yours.calls) if len({c.root for c in calls if c.op == "send"}) > 1]
    if far:
        yield Finding(
            observed=f"{trial.who(far)} sent to more than one rank. On a ring, a rank sends to one neighbour only.",
            action="Pass on the block that has just arrived, always to the same neighbour.",
        )


def _waits_first(calls: Sequence[Call]) -> bool:
    computes = [call.issued for call in calls if call.op == "all_reduce"]
    waits = ([call.waited_from for call in calls if call.op == op] for op in ("send", "recv"))
    return any(wait < compute for its in waits for wait, compute in zip(its, computes, strict=False))


def _sent_before(calls: Sequence[Call]) -> list[int]:
    """Return how many sends come before each all-reduce, which `attend` makes."""
    ops = [call.op for call in calls]
    return [ops[:place].count("send") for place, op in enumerate(ops) if op == "all_reduce"]


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


exercise = Exercise("context.ring_attention", title="Keys and values on a ring", draw=draw, case_count=5,
    tolerance=1e-4, asynchronous=True, measured=True, inputs_matter=False,
    rules=[
        travels_while_it_computes, waits_after_computing, to_one_neighbour, sends_no_more("N − 1 sends of a block"),
        lets_go(LAST, slack=ROOM, late_sends=True),
    ], task="""
    Each rank has the queries of its tokens, and a block: the keys and values of the same tokens. Return the attention
    of this rank's queries to the keys of all ranks. Pass the blocks around the ring, world size − 1 times.
    `attend(query, block)` returns the attention to one block, and its total; put the results together with your
    `merge`. A block is on its way to a neighbour while this rank computes with it. From one round to the next, keep
    only the block that came and the merged result: the check measures the memory on 8 ranks.
    """, hints="""
    Which two things can happen at the same time with the same block? Which of the two has to be started first?

    Start to send the block, and to receive the next one into a new tensor; then compute; then wait for both. The next
    round begins with the block that came. In the last round, nothing has to travel.

    `dist.isend(block, dst)` and `dist.irecv(arriving, src)` return handles with `wait()`. The result starts as
    `torch.zeros_like(query)`, with a total of −∞ for each query.

    ```python
    for step in range(world_size):
        if step < world_size - 1:
            arriving = torch.empty_like(block)
            handles = ...
        output, total = merge(output, total, *attend(query, block))
        if step < world_size - 1:
            ...
            block = arriving
    ```
    """, explanation="""
    Besides its own tokens a rank holds two blocks at most: one that it computes with, and one that comes. So its memory
    does not depend on the length of the whole sequence, only on its part of it. Reading a tensor that is being sent is
    allowed; writing to it is not, which is why the next block comes into a new tensor. The caller's `block` may be
    overwritten here once it is sent; in a model, backward still needs it. A rank computes for
    O(tokens²) with a block and sends O(tokens): with enough tokens a rank, the sends are hidden.
    """)


@exercise
def ring_attention(query: Tensor, block: Tensor, attend: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """Return the attention [tokens, size] of this rank's queries to the keys of all ranks.

    query: [tokens, size].
    block: [2, tokens, size], the keys and the values of this rank's tokens.
    attend: called with `query` and a block, returns the attention to its keys, and its total [tokens, 1].
    Between two rounds, a rank keeps only the block that came and the merged result.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    output, total = torch.zeros_like(query), torch.full_like(query[:, :1], -torch.inf)
    for step in range(world_size):
        if step < world_size - 1:
            arriving = torch.empty_like(block)
            sent = dist.isend(block, (rank + 1) % world_size)
            received = dist.irecv(arriving, (rank - 1) % world_size)
        output, total = merge(output, total, *attend(query, block))
        if step < world_size - 1:
            sent.wait()
            received.wait()
            block = arriving
    return output


COMPUTES = "output, total = merge(output, total, *attend(query, block))\n"

exercise.edit("computes-first", {COMPUTES: "", "if step < world_size - 1:\narriving": COMPUTES +
    "if step < world_size - 1:\n    arriving"}, """
    The result is right. But each rank computes first and then sends, so the network waits for the computing, and the
    computing for the network. Next: start the send before `attend`; it may read the block at the same time.
    """)

exercise.edit("waits-first", {"received = dist.irecv(arriving, (rank - 1) % world_size)\n":
    "received = dist.irecv(arriving, (rank - 1) % world_size)\nsent.wait()\nreceived.wait()\n"}, """
    The result is right. But each rank waits for its messages before it computes, so the network and the computing
    take turns. Next: wait for both handles after `attend`.
    """)

exercise.edit("own-block-only", {"attend(query, block))\n": "attend(query, mine))\n",
    "output, total = torch.zeros_like": "mine = block\noutput, total = torch.zeros_like"}, """
    You attend to your own block in every round, so all keys of other ranks are missing. Next: compute with the block
    that has arrived.
    """)

exercise.edit("no-merge", {COMPUTES: "output = output + attend(query, block)[0]\n"}, """
    You add up the results of the blocks. Each is a mean over its own keys. Next: put them together with `merge`, and
    keep the total.
    """)

exercise.edit("average", {COMPUTES: "output = output + attend(query, block)[0] / world_size\n"}, """
    You take the mean of the results, as if every block had the same sum of exp(score). Next: put them together with
    `merge`, and keep the total.
    """)

exercise.edit("one-round-short", {"for step in range(world_size):": "for step in range(world_size - 1):"}, """
    One round is missing: the block that arrives last is never used. Next: count how often a rank computes, and how
    often it passes a block on: once less.
    """)

exercise.edit("last-block-unused", {"for step in range(world_size):": "for step in range(max(1, world_size - 1)):"}, """
    The rank computes with its own block and with all that come, except the last one. Next: count how often a rank
    computes, and how often it passes a block on: once less.
    """)

exercise.edit("own-block-twice", {"torch.zeros_like(query), torch.full_like(query[:, :1], -torch.inf)":
    "attend(query, block)", "for step in range(world_size):": "for step in range(world_size - 1):"}, """
    The rank computes with its own block twice, and never with the block that arrives last. Next: after the first time,
    let it compute only with blocks that have arrived.
    """)

exercise.edit("own-block-passed-on", {"dist.isend(block,": "dist.isend(mine,", "output, total = torch.zeros_like":
    "mine = block\noutput, total = torch.zeros_like"}, """
    You send your own block in every round, so each rank only ever gets its left neighbour's. Next: pass on the block
    that has just arrived.
    """)

exercise.edit("sent-directly", {"dist.isend(block, (rank + 1)": "dist.isend(mine, (rank + step + 1)",
    "(rank - 1)": "(rank - step - 1)", "output, total = torch.zeros_like":
    "mine = block\noutput, total = torch.zeros_like"}, """
    The result is right. But each rank sends its own block to every rank, so blocks cross the whole network. Next: pass
    on the block that has just arrived, always to the same neighbour.
    """)

exercise.edit("total-not-kept", {"output, total = merge(": "seen = merge(", "*attend(query, block))\n":
    "*attend(query, block))\noutput, total = seen[0], total if step else seen[1]\n"}, """
    The total stays that of the first block, so later blocks are weighed as if nothing else had been seen. Next: keep
    both results of a merge for the next one.
    """)

exercise.edit("once-around", {"if step < world_size - 1:\narriving": "if world_size > 1:\n    arriving",
    "if step < world_size - 1:\nsent": "if world_size > 1:\n    sent"}, """
    The result is right. You pass the blocks on once more than needed: in the last round, each rank gets its own block
    back. Next: let nothing travel in the last round.
    """)

exercise.edit("sends-in-every-round", {"if step < world_size - 1:\narriving": "if step < world_size:\n    arriving",
    "if step < world_size - 1:\nsent": "if step < world_size:\n    sent"}, """
    You pass the blocks on in the last round, too: each rank gets its own block back, and a single rank sends to itself.
    Next: let nothing travel in the last round.
    """)

exercise.edit("same-buffer", {"arriving = torch.empty_like(block)": "arriving = block"}, """
    The next block arrives in the tensor that you are sending and computing with. Next: receive into a new tensor.
    """)

exercise.edit("no-wait", {"sent.wait()\nreceived.wait()\n": ""}, """
    You use the arriving block without waiting for it. Next: call `wait()` on both handles before the next round.
    """)

KEEPS = """
    The result is right. But what a rank keeps grows with every round, its blocks or its results, so memory grows with
    the number of ranks. Next: merge each result in its round, and keep no block that you have computed with and passed
    on.
    """

exercise.edit("keeps-every-block", {"output, total = torch.zeros_like": "blocks = [block]\noutput, total = "
    "torch.zeros_like", "block = arriving\n": "block = arriving\nblocks.append(block)\n"}, KEEPS)

exercise.edit("keeps-every-result", {COMPUTES: "results.append(attend(query, block))\n",
    "output, total = torch.zeros_like": "results = []\noutput, total = torch.zeros_like",
    "return output": "for seen in results:\n    output, total = merge(output, total, *seen)\nreturn output"}, KEEPS)

exercise.edit("starts-at-zero", {"torch.full_like(query[:, :1], -torch.inf)": "torch.zeros_like(query[:, :1])"}, """
    The total starts at 0, as if one key with the score 0 had been seen, and its value were zero. Next: start at −∞, the
    logarithm of an empty sum.
    """)


@exercise.variant
def at_both_ends(query: Tensor, block: Tensor, attend: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    result = None
    for left in reversed(range(world_size)):
        works, coming = [], torch.empty_like(block)
        if left:
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.irecv, coming, (rank - 1) % world_size),
                dist.P2POp(dist.isend, block, (rank + 1) % world_size),
            ])  # fmt: skip
        seen = attend(query, block)
        result = seen if result is None else merge(*result, *seen)
        for work in works:
            work.wait()
        block = coming
    assert result is not None
    return result[0]


exercise.variant_edit("receives-first", {"sent = dist.isend(block, (rank + 1) % world_size)\n": "",
    "(rank - 1) % world_size)": "(rank - 1) % world_size)\nsent = dist.isend(block, (rank + 1) % world_size)"})

exercise.variant_edit("waits-for-sends-at-the-end", {"output, total = torch.zeros_like": "sends = []\noutput, total = "
    "torch.zeros_like", "sent = dist.isend(block, (rank + 1) % world_size)": "sends.append(dist.isend(block, "
    "(rank + 1) % world_size))", "sent.wait()\n": "", "return output":
    "for work in sends:\n    work.wait()\nreturn output"})

exercise.variant_edit("two-buffers", {"output, total = torch.zeros_like": "buffers = [torch.empty_like(block), "
    "torch.empty_like(block)]\noutput, total = torch.zeros_like", "torch.empty_like(block)\nsent":
    "buffers[step % 2]\nsent"})
