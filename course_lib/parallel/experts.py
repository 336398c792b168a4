"""Expert parallel: a block has many MLPs, its experts. Each rank has some of them, and tokens travel to theirs.

    router       scores all experts for a token, and sends it to the `top` best (Shazeer et al. 2017)
    choice       one token for one expert; a token makes `top` of them
    balance      the auxiliary loss: 1 if every expert gets as many tokens (Fedus et al. 2021, section 2.2)

Two all-to-alls of activations in forward, two in backward, and a small one of counts, which differ between ranks.
"""

from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data import Block
from .collectives import Group, all_to_all
from .parts import Part


class Experts(Part):
    """An MLP of `count` experts, of which each rank has count / N: tokens [n, width] to the same.

    After forward, `balance` is the auxiliary loss. Its average over the ranks is that of all their tokens.

    Args:
        width: elements of a token.
        count: the experts of all ranks together.
        top: experts for each token.
        group: the ranks that share the experts; all of them by default.

    Raises:
        ValueError: the number of ranks does not divide `count`.
    """

    balance: Tensor

    def __init__(self, width: int, count: int, top: int = 1, group: Group = None) -> None:
        super().__init__(group)
        self.top, self.world_size = top, dist.get_world_size(group)
        if count % self.world_size:
            raise ValueError(
                f"{count} experts cannot be shared by {self.world_size} ranks. Choose a number of ranks that divides "
                "the number of experts."
            )
        self.router = nn.Linear(width, count, bias=False)
        # Every rank makes all experts and keeps its own, so that they start as in one process.
        every = [_mlp(width) for _ in range(count)]
        mine = range(count)[dist.get_rank(group) * count // self.world_size :][: count // self.world_size]
        self.experts = nn.ModuleDict({str(number): every[number] for number in mine})

    def __deepcopy__(self, memo: dict[int, Any]) -> Part:
        if "balance" in vars(self):  # of the last forward, with its graph, which cannot be copied
            memo[id(self.balance)] = self.balance.detach()
        return super().__deepcopy__(memo)

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.router(tokens).softmax(dim=1)
        weights, choices = scores.topk(self.top)
        counts = choices.flatten().bincount(minlength=scores.shape[1])
        self.balance = self._balance(counts, scores)
        order = choices.flatten().argsort(stable=True)  # all choices of expert 0, then those of expert 1, ...
        outputs = self._compute(tokens[order // self.top], counts) * weights.flatten()[order, None]
        return torch.zeros_like(tokens, dtype=outputs.dtype).index_add(0, order // self.top, outputs)

    def _compute(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return what the experts make of tokens, of which `counts` [count] say how many each expert gets."""
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)  # from each rank, for each of my experts
        sent, received = (each.view(self.world_size, -1).sum(dim=1).tolist() for each in (counts, arriving))
        pieces = all_to_all(tokens, sent, received, self.group).split(arriving.tolist())
        outputs = [expert(piece) for expert, piece in zip(cycle(self.experts.values()), pieces, strict=False)]
        return all_to_all(torch.cat(outputs), received, sent, self.group)

    def _balance(self, counts: Tensor, scores: Tensor) -> Tensor:
        everywhere = counts.to(scores.dtype)
        dist.all_reduce(everywhere, group=self.group)
        choices = everywhere.sum()
        tokens = choices / (self.top * self.world_size)  # of a rank, on average: ranks may have different numbers
        return len(counts) * (everywhere / choices) @ (scores.sum(dim=0) / tokens)


class ExpertBlock(Block):
    """A transformer block with experts in the place of its MLP. The arguments are those of Block and of Experts."""

    def __init__(self, width: int, heads: int, count: int, **options: int | Group) -> None:
        super().__init__(width, heads)
        del self.up, self.down
        self.experts = Experts(width, count, **options)  # type: ignore[arg-type]

    def mlp(self, x: Tensor) -> Tensor:
        y: Tensor = self.experts(x.flatten(0, 1))
        return y.view_as(x)


def average_gradients(model: nn.Module, group: Group = None) -> None:
    """Make each gradient that of the mean of all ranks' losses.

    An expert has seen the tokens of all ranks, so its gradient is a sum over the ranks already, and is only divided.
    The other parameters are on every rank, and are all-reduced. `group` has to be the experts' own: the copies of
    an expert in other groups are not summed.
    """
    sums = {param for module in model.modules() if isinstance(module, Experts) for param in module.experts.parameters()}
    for param in model.parameters():
        if param.grad is not None:
            if param not in sums:
                dist.all_reduce(param.grad, group=group)
            param.grad /= dist.get_world_size(group)


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
