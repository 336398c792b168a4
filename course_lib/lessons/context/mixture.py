"""Tokens that travel to their experts and back."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ... import parallel
from ...exercises import Case, Exercise, Finding, Solution, Trial, draw_world_size, normal
from ...world import Call
from .data import an_expert
from .expert_gradients import zeros_for_none


def draw(rng: random.Random, number: int) -> Case:
    """Draw tokens that all choose the same expert in draw 2, so that the others get none."""
    world_size, width, seed = draw_world_size(rng, number), rng.randint(2, 3), rng.getrandbits(31)
    counts = rng.sample(range(3, 4 + world_size), world_size)

    def args(rank: int) -> tuple[int, Tensor, Tensor]:
        tokens, generator = normal(counts[rank], width, seed=seed + rank), torch.Generator().manual_seed(seed + rank)
        choice = torch.randint(world_size, (counts[rank],), generator=generator)
        return seed, tokens, choice.clamp(max=0) if number == 2 else choice

    what = f"tokens on each: {', '.join(map(str, counts))}" + ", all for expert 0" * (number == 2)
    return Case(world_size=world_size, args=args, what=what)


def forward_and_backward(solution: Solution, seed: int, tokens: Tensor, choice: Tensor) -> Any:
    expert = an_expert(dist.get_rank(), tokens.shape[1])
    tokens.requires_grad_()
    output = solution(tokens, choice, expert)
    if not isinstance(output, Tensor) or output.shape != tokens.shape:
        return {"output": output}
    if output.requires_grad:
        (output * normal(*tokens.shape, seed=seed + 50 + dist.get_rank())).sum().backward()
    gradients = {name: zeros_for_none(param) for name, param in expert.named_parameters()}
    return {"output": output.detach(), "gradient of tokens": tokens.grad} | gradients


def sends_each_token_once(trial: Trial) -> Iterator[Finding]:
    """Require that a rank sends no more bytes of tokens than the reference. Counts may travel in any way."""
    yours, expected = ([_bytes_of_tokens(calls) for calls in seen.calls] for seen in (trial.yours, trial.expected))
    over = [rank for rank, nbytes in enumerate(yours) if nbytes > expected[rank]]
    if over:
        yield Finding(
            observed=f"{trial.who(over[:1])} sent {yours[over[0]]:,} bytes of tokens; {expected[over[0]]:,} suffice.",
            action="Send a token only to the rank of its expert, and its result only to the rank that it came from.",
        )


def _bytes_of_tokens(calls: Sequence[Call]) -> float:
    return sum(call.sent_bytes for call in calls if call.dtype is not None and call.dtype.is_floating_point)


exercise = Exercise("context.mixture", title="To the experts and back", draw=draw, trial=forward_and_backward,
    case_count=4, tolerance=1e-4, inputs_matter=False,
    rules=[sends_each_token_once], task="""
    Each rank has one expert, and `choice[t]` is the rank whose expert token t goes to. Send every token to its
    expert, and nowhere else, compute there, and send the result back. Return the results in the order of `tokens`.
    Ranks send different numbers of tokens, and an expert may get none. `parallel.all_to_all(x, sent, received)` is
    given. It sends the first `sent[0]` rows of x to rank 0, the next `sent[1]` to rank 1, and so on; `received` says
    how many rows come from each rank. Backward passes through it, and has to reach the experts and the tokens.
    """, hints="""
    In which order must the tokens lie before they are sent? Who knows how many tokens come from rank 2?

    Sort the tokens by their choice, and keep the order. Count how many go to each rank, and exchange the counts first:
    each rank tells each other rank one number. The way back has the same counts, the other way around.

    `choice.argsort(stable=True)`, `choice.bincount(minlength=world_size)`, `dist.all_to_all_single(received, sent)`.
    `index_copy(0, order, rows)` puts the row that was taken from place `order[n]` back there.

    ```python
    order = choice.argsort(stable=True)
    sent = choice.bincount(minlength=...)
    received = torch.empty_like(sent)
    dist.all_to_all_single(...)
    arrived = parallel.all_to_all(tokens[order], sent.tolist(), received.tolist())
    back = parallel.all_to_all(expert(...), ..., ...)
    return torch.zeros_like(tokens).index_copy(0, order, back)
    ```
    """, explanation="""
    Two all-to-alls of tokens in forward, and two in backward, which autograd adds. Each sends a token's vector
    once, wherever the experts are, unless the expert is on its own rank. A rank without tokens for its expert calls
    everything as well: the others wait for it, and its gradient is zero. `sent.tolist()` makes the CPU wait for the
    GPU, because the sizes must be known before the call. Fixed capacities avoid this wait, and cost padding.
    """)


@exercise
def mixture(tokens: Tensor, choice: Tensor, expert: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what each token's expert makes of it, in the order of `tokens`.

    tokens: [n, width], this rank's tokens.
    choice: [n], the rank of each token's expert.
    expert: this rank's, maps [any number, width] to the same shape.
    """
    order = choice.argsort(stable=True)
    sent = choice.bincount(minlength=dist.get_world_size())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    arrived = parallel.all_to_all(tokens[order], sent.tolist(), received.tolist())
    back = parallel.all_to_all(expert(arrived), received.tolist(), sent.tolist())
    return torch.zeros_like(tokens).index_copy(0, order, back)


PUT_BACK = "torch.zeros_like(tokens).index_copy(0, order, back)"

exercise.edit("not-put-back", {PUT_BACK: "back"}, """
    The results come back in the order in which you sent the tokens: sorted by expert. Next: put each row back to the
    place that its token had.
    """)

exercise.edit("sorted-twice", {PUT_BACK: "back[order]"}, """
    `back[order]` sorts once more; the inverse is needed. Row n of `back` belongs to place `order[n]`. Next: write to
    the places `order`, do not read from them.
    """)

exercise.edit("not-sorted", {"tokens[order]": "tokens"}, """
    You count how many tokens go to each rank, but send them in their own order: the first `sent[0]` rows go to rank 0,
    whatever they chose. Next: sort the tokens by their choice before you send.
    """)

exercise.edit("never-sorted", {"tokens[order]": "tokens", PUT_BACK: "back"}, """
    You count how many tokens go to each rank, but send them in their own order: the first `sent[0]` rows go to rank 0,
    whatever they chose. Next: sort the tokens by their choice before you send, and put the results back afterwards.
    """)

exercise.edit("counts-not-exchanged", {"dist.all_to_all_single(received, sent)": "received.copy_(sent)"}, """
    You expect from each rank as many tokens as you send there. Each router decides for itself. Next: exchange the
    counts first, with an all-to-all of one number for each rank.
    """)

exercise.edit("detached", {"all_to_all(tokens[order], sent": "all_to_all(tokens[order].detach(), sent"}, """
    The results are right, but the gradient of `tokens` does not come back. Next: let backward pass through every step,
    without `detach`, and without `dist.all_to_all_single` for the tokens.
    """)

exercise.edit("back-detached", {"index_copy(0, order, back)": "index_copy(0, order, back.detach())"}, """
    The results are right, but no gradient reaches the experts: nothing leads from them to the result that you return.
    Next: let backward pass through the way back. `dist.all_to_all_single` does not let it through.
    """)

exercise.edit("expert-at-home", {"expert(arrived)": "arrived", PUT_BACK: "expert(" + PUT_BACK + ")"}, """
    Your own expert computes all of this rank's tokens, whichever expert they chose. Next: call `expert` on the tokens
    that have arrived.
    """)

exercise.edit("idle-expert-leaves", {"back = parallel": "if not len(arrived):\n    return tokens\nback = parallel"}, """
    A rank whose expert got no tokens returns early. The others wait for it, because an all-to-all needs every rank.
    Next: let every rank make every call, even with no rows.
    """)

exercise.edit("everything-to-everyone", {
    "sent = choice.bincount(minlength=dist.get_world_size())": "shares = [(choice == rank).float()[:, None] "
    "for rank in range(dist.get_world_size())]\nsent = torch.full((dist.get_world_size(),), len(tokens))",
    "all_to_all(tokens[order], sent": "all_to_all(torch.cat([tokens] * len(shares)), sent",
    PUT_BACK: "(back.view(len(shares), *tokens.shape) * torch.stack(shares)).sum(dim=0)"}, """
    The results are right, but every token goes to every expert, and most results are thrown away. Next: send a token
    only to the expert that it chose.
    """)


@exercise.variant
def one_rank_after_the_other(tokens: Tensor, choice: Tensor, expert: Callable[[Tensor], Tensor]) -> Tensor:
    places = [torch.nonzero(choice == rank)[:, 0] for rank in range(dist.get_world_size())]
    sent, received = torch.tensor([len(place) for place in places]), torch.zeros(len(places), dtype=torch.int64)
    dist.all_to_all_single(received, sent)
    order, there, here = torch.cat(places), sent.tolist(), received.tolist()
    return parallel.all_to_all(expert(parallel.all_to_all(tokens[order], there, here)), here, there)[order.argsort()]


exercise.variant_edit("writes-in-place", {"return torch.zeros_like(tokens).index_copy(0, order, back)":
    "result = torch.empty_like(tokens)\nresult[order] = back\nreturn result"})
