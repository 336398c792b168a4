"""A module of which each rank has a part: some columns of a matrix, some of the experts."""

from copy import deepcopy
from typing import Any

from torch import nn

from .collectives import Group


class Part(nn.Module):
    """A module whose parameters differ on the ranks of `group`. An engine of `zero` over these ranks is refused."""

    differs_by_rank = True

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> "Part":
        """Copy everything except the group, which cannot be copied: a copy computes with the same ranks."""
        memo[id(self.group)] = self.group
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__dict__ = deepcopy(self.__dict__, memo)
        return copied
