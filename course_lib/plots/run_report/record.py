"""`RunRecord`: what the page of a run shows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import grouped
from ...planner import duration, size

NAMES = ("ranks", "ended", "peak", "sent", "waited")
NOTHING, UNKNOWN = "nothing", "unknown"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RunRecord:
    """A run, or a failed run up to the moment when it stopped.

    Attributes:
        about: these attributes are read: `program`, `backend`, `world_size`, `began`, `torch_version` and `note`.
        failure: the message of a failed run.
        warnings: sentences.
        ends: the state in which each rank ended, in words. The keys of this mapping and of the following ones are
            ranks. A rank of which nothing is known is left out.
        memory: as `plot_memory` reads it.
        comm: these attributes are read: `sent_bytes`, `by_op`, `by_rank` and `count`.
        timelines: as `plot_timeline` reads them.
        slowest: a sentence about the rank that computed longest.
        layout: rows with a call or a result, the tensor, the layout before and after the call, and a remark.
        replay: the replay, with its page as `html`; None if there is none.
        call_counts: the most calls of one rank that the replay shows, and the most that one rank made.
        output: lines in a row that the same ranks printed, with these ranks.
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
    output: Sequence[tuple[Sequence[int], str]]

    @property
    def whole(self) -> bool:
        """Return whether all ranks ran. A dry run runs one."""
        world_size: int = self.about.world_size
        return len(self.ends) == world_size


def alike(run: RunRecord) -> Iterator[tuple[tuple[int, ...], str, str, str, str]]:
    """Yield `NAMES` in words: how ranks ended, what they held and sent, and how long they waited. Equal ranks come
    together. A dry run computes nothing, so its times mean nothing."""
    lines = run.timelines if run.whole else {}
    waited = {rank: sum(wait.seconds for wait in line.waited) for rank, line in lines.items()}
    gpu = " on its pretended GPU" if run.about.note else ""
    words = {rank: (end, _peak(run.memory.get(rank), gpu), _sent(run.comm[rank])) for rank, end in run.ends.items()}
    for ranks, said in grouped(words):
        yield ranks, *said, _range([waited[rank] for rank in ranks if rank in waited])


def _peak(memory: Any, gpu: str) -> str:
    if memory is None:
        return UNKNOWN
    if memory.at_peak is None:
        return f"nothing{gpu}; `course run --no-gpus` counts the CPU's memory" if gpu else NOTHING
    parts = [f"{category} {size(nbytes)}" for category, nbytes in memory.at_peak.by_category.items() if nbytes]
    return f"{size(memory.peak_bytes)}{gpu}: {', '.join(parts)}"


def _sent(comm: Any) -> str:
    kinds = []
    for op, nbytes in comm.by_op.items():
        if nbytes:
            calls = comm.count(op)
            kinds.append(f"{op} {size(nbytes)} in {calls} call{'s' if calls > 1 else ''}")
    return f"{size(comm.sent_bytes)}: {', '.join(kinds)}" if kinds else NOTHING


def _range(seconds: Sequence[float]) -> str:
    if not seconds:
        return UNKNOWN
    return " to ".join(dict.fromkeys(map(duration, (min(seconds), max(seconds))))) if any(seconds) else NOTHING
