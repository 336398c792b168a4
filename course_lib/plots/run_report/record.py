"""`RunRecord`: what the page of a run shows."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run, or a failed run up to the moment when it stopped.

    Attributes:
        about: these attributes are read: `program`, `backend`, `world_size`, `began`, `torch_version` and `note`.
        failure: the message of a failed run.
        warnings: sentences.
        ends: the state in which each rank ended, in words. This and the following have the rank as their key, and lack
            the ranks of which nothing is known.
        memory: as `plot_memory` reads it.
        comm: these attributes are read: `sent_bytes`, `by_op`, `by_rank` and `count`.
        timelines: as `plot_timeline` reads them.
        slowest: a sentence about the rank that computed longest.
        layout: rows with a call or a result, the tensor, the layout before and after the call, and a remark.
        replay: the replay, with its page as `html`; None if there is none.
        call_counts: the most calls of a rank that the replay shows, and that it made.
        output: what each rank printed.
    """

    about: Any
    failure: str
    warnings: Sequence[str]
    ends: Mapping[int, str]
    memory: Mapping[int, Any]
    comm: Mapping[int, Any]
    timelines: Mapping[int, Any]
    slowest: str
    layout: Sequence[Sequence[str]]
    replay: Any
    call_counts: tuple[int, int]
    output: Mapping[int, str]

    @property
    def whole(self) -> bool:
        """Return whether all ranks ran. A dry run runs one."""
        world_size: int = self.about.world_size
        return len(self.ends) == world_size


def together(keys: Mapping[int, Hashable]) -> list[list[int]]:
    """Return the ranks that have the same key together, in the order of their first rank."""
    found: dict[Hashable, list[int]] = {}
    for rank, key in keys.items():
        found.setdefault(key, []).append(rank)
    return list(found.values())
