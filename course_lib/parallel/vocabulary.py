"""The embedding, the head and the loss, cut along the vocabulary (Shoeybi et al. 2019, section 3).

Rank r holds `vocab / N` rows of both matrices: those of the tokens from `r · vocab / N` on. No rank ever has the scores
of the whole vocabulary, which are the largest activation of a small model.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .collectives import Group, all_reduce


def look_up(tokens: Tensor, rows: Tensor, group: Group = None) -> Tensor:
    """Return this rank's summand of the embedding of `tokens`: zeros for every token that another rank holds.

    Args:
        tokens: [batch, length], the same on every rank.
        rows: [vocab / N, width], this rank's rows.

    Returns:
        [batch, length, width]; its sum over the ranks is the embedding.
    """
    mine, index = _among_mine(tokens, rows.shape[0], group)
    return nn.functional.embedding(index, rows) * mine[..., None]


def vocabulary_cross_entropy(scores: Tensor, targets: Tensor, group: Group = None) -> Tensor:
    """Return the mean cross-entropy, as `torch.nn.functional.cross_entropy` of the whole scores, on every rank.

    It leaves out tokens whose target is -100. It computes in fp32 if the scores are in 16 bits, as autocast does.

    Args:
        scores: [tokens, vocab / N], this rank's part of each token's scores.
        targets: [tokens], each of the whole vocabulary, or -100; the same on every rank. They are not checked: torch
            raises an IndexError for a target that is neither, and this function takes the largest score for it.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # loss = log(sum of exp(score)) - the target's score. Three small all-reduces of [tokens] in place of the scores.
    largest = scores.detach().amax(dim=1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    scores = scores - largest[:, None]
    total = all_reduce(scores.exp().sum(dim=1), group)
    mine, index = _among_mine(targets, scores.shape[1], group)
    of_target = all_reduce(torch.where(mine, scores.gather(1, index[:, None])[:, 0], 0), group)
    counted = targets != -100
    return torch.where(counted, total.log() - of_target, 0).sum() / counted.sum()


def _among_mine(tokens: Tensor, count: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return which tokens this rank holds, and each one's place among this rank's rows, or 0."""
    index = tokens - dist.get_rank(group) * count
    mine = (index >= 0) & (index < count)
    return mine, torch.where(mine, index, 0)
