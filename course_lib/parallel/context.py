"""Context parallel: each rank has some tokens of every sequence, and keys and values travel to where they are needed.

    cut                which tokens a rank has; outside attention it computes with these alone
    block              the keys and values of one rank's tokens, [2, batch, heads, tokens, head_size]
    ring attention     blocks travel around a ring, each rank adds what its queries see in them (Liu et al. 2023)
    zigzag             a rank has a piece from the front and one from the back, so that causal work is equal
                       (Dubey et al. 2024, section 3.3.2; Brandon et al. 2023 deal tokens out in turns instead)
    total              log of the sum of exp(score) over the keys seen so far, [batch, heads, tokens, 1]
    head attention     an all-to-all swaps tokens for heads, so that a rank has all tokens of some heads
                       (DeepSpeed-Ulysses, Jacobs et al. 2023)

No rank ever holds the whole sequence with ring attention: at most its own block, the one it has and the one that comes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .collectives import Group, all_to_all


@dataclass(frozen=True)
class Cut:
    """Which tokens of a sequence each rank has: `pieces[r]` are the numbers of rank r's pieces, in ascending order.

    The pieces are as equal as possible; the first ones have a token more where `length` does not divide.
    """

    length: int
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def in_order(cls, length: int, world_size: int) -> "Cut":
        return cls(length, tuple((rank,) for rank in range(world_size)))

    @classmethod
    def zigzag(cls, length: int, world_size: int) -> "Cut":
        """Cut into 2N pieces: rank r has piece r from the front, and piece r from the back."""
        return cls(length, tuple((rank, 2 * world_size - 1 - rank) for rank in range(world_size)))

    def places(self, rank: int) -> Tensor:
        """Return the places of this rank's tokens in the sequence."""
        every = torch.arange(self.length).tensor_split(sum(map(len, self.pieces)))
        return torch.cat([every[piece] for piece in self.pieces[rank]])

    def slices(self, rank: int) -> list[tuple[int, slice]]:
        """Return this rank's pieces: the number of each, and where it lies among this rank's tokens."""
        each, more = divmod(self.length, sum(map(len, self.pieces)))
        ends = list(accumulate(each + (piece < more) for piece in self.pieces[rank]))
        return list(zip(self.pieces[rank], map(slice, [0, *ends], ends), strict=False))


def ring_attention(query: Tensor, key: Tensor, value: Tensor, cut: Cut, group: Group = None) -> Tensor:
    """Return the causal attention of this rank's queries to all tokens before them, of the shape of `query`.

    Sends (N − 1) blocks in forward; in backward (N − 1) blocks, and N gradients of a block.

    Args:
        query, key, value: [batch, heads, tokens, head_size], of this rank's tokens.
        cut: which tokens each rank has, the same on every rank.
        group: the ranks that share the sequence; all of them by default.

    Raises:
        ValueError: the cut is for a different number of ranks, or gives this rank a different number of tokens.
    """
    rank, world_size, tokens = dist.get_rank(group), dist.get_world_size(group), {query.shape[2], key.shape[2]}
    if len(cut.pieces) != world_size or tokens != {len(cut.places(rank))}:
        raise ValueError(
            f"rank {rank} of {world_size} has {query.shape[2]} queries and {key.shape[2]} keys, and the cut is of "
            f"{cut.length} tokens for {len(cut.pieces)} ranks. Make the cut for this sequence and this group, and give "
            "each rank the tokens at cut.places(rank)."
        )
    output: Tensor = _RingAttention.apply(query, torch.stack([key, value]), cut, group)
    return output


def head_attention(query: Tensor, key: Tensor, value: Tensor, cut: Cut, group: Group = None) -> Tensor:
    """Return the same as `ring_attention`, of a cut in order: four all-to-alls, and four more in backward.

    Raises:
        ValueError: the cut is not in order, or the number of ranks does not divide the number of heads.
    """
    if query.shape[1] % (world_size := dist.get_world_size(group)) or cut != Cut.in_order(cut.length, world_size):
        raise ValueError(
            f"{query.shape[1]} heads cannot be swapped on {world_size} ranks with the pieces {cut.pieces}. Choose a "
            "number of ranks that divides the heads, and Cut.in_order, so that joined tokens are in order."
        )
    tokens = [len(cut.places(rank)) for rank in range(world_size)]
    mine = [tokens[dist.get_rank(group)]] * len(tokens)

    def to_heads(x: Tensor) -> Tensor:
        """[batch, heads, tokens, head_size] of some tokens -> [batch, heads / N, length, head_size] of some heads."""
        parts = torch.cat(x.movedim(2, 0).chunk(len(tokens), dim=2))  # for each rank its heads, [N · tokens, batch, …]
        return all_to_all(parts, mine, tokens, group).movedim(0, 2)

    def to_tokens(x: Tensor) -> Tensor:
        parts = all_to_all(x.movedim(2, 0), tokens, mine, group)
        return torch.cat(parts.chunk(len(tokens)), dim=2).movedim(0, 2)

    return to_tokens(F.scaled_dot_product_attention(to_heads(query), to_heads(key), to_heads(value), is_causal=True))


def pass_right(x: Tensor, shape: Any, group: Group = None) -> Callable[[], Tensor]:
    """Start to send `x` to the next rank of the ring; return a function that waits for the previous rank's tensor.

    That tensor has `shape`. `x` must not change until the function has returned.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1:
        return lambda: x
    arriving = x.new_empty(shape)
    sent = dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(rank + 1) % world_size)
    received = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % world_size)
    works = dist.batch_isend_irecv([sent, received])

    def wait() -> Tensor:
        for work in works:
            work.wait()
        return arriving

    return wait


class _RingAttention(Function):
    """Attention in blocks, with the scores computed again in backward (Dao et al. 2022, algorithms 1 and 4)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, block: Tensor, cut: Cut, group: Group) -> Tensor:
        output = torch.zeros_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        total = torch.full_like(output[..., :1], -torch.inf)
        for source, visiting in _around(block, cut, group):
            for queries, keys, same in _pairs(cut, dist.get_rank(group), source):
                key, value = visiting[..., keys, :]
                scores = _scores(query[..., queries, :], key, same)
                seen = scores.logsumexp(-1, keepdim=True)
                both = torch.logaddexp(total[..., queries, :], seen)
                output[..., queries, :] *= (total[..., queries, :] - both).exp()
                output[..., queries, :] += (scores - both).exp().to(value.dtype) @ value
                total[..., queries, :] = both
        output = output.to(query.dtype)
        ctx.save_for_backward(query, block, output, total)
        ctx.cut, ctx.group = cut, group
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, block, output, total = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        inner = (grad * output).sum(-1, keepdim=True, dtype=total.dtype)
        grad_query = torch.zeros_like(query)
        travelled: Callable[[], Any] = lambda: 0  # noqa: E731 (what other ranks have added to the block's gradient)
        for source, visiting in _around(block, ctx.cut, ctx.group):
            grad_block = torch.zeros_like(visiting)
            for queries, keys, same in _pairs(ctx.cut, dist.get_rank(ctx.group), source):
                q, (k, v), g = query[..., queries, :], visiting[..., keys, :], grad[..., queries, :]
                weights = (_scores(q, k, same) - total[..., queries, :]).exp()
                grad_scores = (weights * (g @ v.mT - inner[..., queries, :]) * scale).to(g.dtype)
                grad_query[..., queries, :] += grad_scores @ k
                grad_block[0][..., keys, :] += grad_scores.mT @ q
                grad_block[1][..., keys, :] += weights.to(g.dtype).mT @ g
            grad_block += travelled()
            travelled = pass_right(grad_block, _shape(block, source - 1, ctx.cut), ctx.group)
        return grad_query, travelled(), None, None


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)  # fp32 for 16-bit inputs, as in FlashAttention
    scores: Tensor = (query @ key.mT).to(wide) * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _around(block: Tensor, cut: Cut, group: Group) -> Iterator[tuple[int, Tensor]]:
    """Yield every rank's block with its rank, this rank's first. The next one travels while the caller computes."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    for source in range(rank, rank - world_size + 1, -1):
        arriving = pass_right(block, _shape(block, source - 1, cut), group)
        yield source % world_size, block
        block = arriving()
    yield (rank + 1) % world_size, block


def _pairs(cut: Cut, rank: int, source: int) -> Iterator[tuple[slice, slice, bool]]:
    """Yield each piece of queries with each piece of keys that it sees, and whether they are the same piece."""
    for mine, queries in cut.slices(rank):
        for theirs, keys in cut.slices(source):
            if theirs <= mine:
                yield queries, keys, mine == theirs


def _shape(block: Tensor, source: int, cut: Cut) -> tuple[int, ...]:
    return (*block.shape[:3], len(cut.places(source % len(cut.pieces))), block.shape[4])
