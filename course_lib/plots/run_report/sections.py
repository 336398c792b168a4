"""The sections of a run's page, each as HTML and as text."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from ...errors import who
from ...planner import duration
from ..canvas import WIDTH
from ..comm import plot_comm
from ..memory import MOST_PLACES, plot_memory
from ..picture import Picture, framed
from ..tables import Table
from ..timeline import LEFT, plot_timeline
from .record import NAMES, RunRecord, alike

CODE = re.compile(r"`([^`]+)`")
SHORT = re.compile(r">[^<>]{1,24}</t[dh]>")
"""Code in a message, and cells that stay in one line."""
KEEP_VALUES = "make the world with World(…, replay=True), or run the program with --replay."
MOST_LANES, MOST_ROWS = 8, 100
"""Ranks in the figure of their times, and rows in the table of layouts."""


class Part(NamedTuple):
    """A part of a section."""

    html: str
    text: str


def sections(run: RunRecord) -> dict[str, list[Part]]:
    """Return the parts of each section by its heading, which is the name of the function that makes it."""
    makers = (outcome, memory, traffic, time, layout, replay, program)
    return {maker.__name__.capitalize(): list(maker(run)) for maker in makers}


def outcome(run: RunRecord) -> Iterator[Part]:
    """Yield how the run ended, a line for ranks that are alike, and the warnings."""
    if run.failure:
        yield _message(run.failure)
    else:
        all_of_them = f"All {len(run.ends)} ranks" if len(run.ends) > 2 else "Both ranks"
        yield _words(f"{all_of_them if len(run.ends) > 1 else who(list(run.ends)).capitalize()} returned.")
    yield _table(NAMES, [(who(ranks), *words) for ranks, *words in alike(run)])
    if run.warnings:
        listed = "".join(f"<li>{escape(warning[:1].upper() + warning[1:])}</li>" for warning in run.warnings)
        yield Part(f'<h3>Warnings</h3><ul class="warnings">{listed}</ul>', "\n".join(["Warnings", *run.warnings]))


def memory(run: RunRecord) -> Iterator[Part]:
    """Yield memory over time."""
    if not run.memory:
        yield _words("Memory was not measured.")
        return
    known = list(run.memory.values())
    in_order = list(run.memory) == list(range(len(known)))
    yield _figure(plot_memory(known, None if in_order else [f"rank {rank}" for rank in run.memory]))
    most = max(len(one.timeline) for one in known)
    if most > MOST_PLACES:
        yield _words(f"Each place in the figure has the highest of up to {-(-most // MOST_PLACES)} changes.")


def traffic(run: RunRecord) -> Iterator[Part]:
    """Yield between which ranks bytes went."""
    if not run.whole:
        yield _words("A dry run counts what one rank sends: see the outcome.")
    elif any(comm.sent_bytes for comm in run.comm.values()):
        yield _figure(plot_comm([[comm.by_rank.get(peer, 0) for peer in run.comm] for comm in run.comm.values()]))
    else:
        yield _words("No rank sent anything.")


def time(run: RunRecord) -> Iterator[Part]:
    """Yield what each rank did and when; of many ranks, those that waited least and most."""
    if not run.timelines:
        yield _words("No rank's times are known.")
        return
    if not run.whole:
        yield _words("A dry run computes nothing, so its times mean nothing.")
        return
    by_wait = sorted(run.timelines.values(), key=lambda line: sum(wait.seconds for wait in line.waited))
    half = MOST_LANES // 2
    chosen = by_wait if len(by_wait) <= MOST_LANES else by_wait[:half] + by_wait[-half:]
    yield _figure(plot_timeline(sorted(chosen, key=lambda line: line.rank)))
    if len(chosen) < len(by_wait):
        yield _words(
            f"Of {len(by_wait)} ranks, the figure shows the {half} that waited least and the {half} that most."
        )
    pixel = max(line.end for line in chosen) / (WIDTH - LEFT)
    yield _words(f"Calls less than {duration(pixel / 2)} apart are drawn as one. {run.slowest}")


def layout(run: RunRecord) -> Iterator[Part]:
    """Yield which tensors are replicated, sharded, partial or different."""
    if len(run.ends) == 1:
        yield _words("One rank ran, so there is nothing to compare.")
        return
    rows = run.layout if len(run.layout) <= MOST_ROWS else [row for row in run.layout if row[-1]] or run.layout
    if rows:
        yield _table(("call", "tensor", "before", "after", "remark"), rows[:MOST_ROWS])
    if len(run.layout) > MOST_ROWS:
        remarked = f"{len(rows):,} with a remark"
        which = f"first {MOST_ROWS} of {remarked}" if len(rows) > MOST_ROWS else remarked
        if not rows[0][-1]:
            which = f"{MOST_ROWS} that came first"
        yield _words(f"Of {len(run.layout):,} rows, the {which} are shown.")
    calls = [call for comm in run.comm.values() for call in comm.calls]
    if calls and not any(getattr(call, "values", None) for call in calls):
        yield _words(f"To compare the tensors of collectives, {KEEP_VALUES}")


def replay(run: RunRecord) -> Iterator[Part]:
    """Yield the player."""
    if run.replay is None:
        any_call = any(comm.calls for comm in run.comm.values())
        yield _words(f"To have the replay here, {KEEP_VALUES}" if any_call else "No rank made a call to replay.")
        return
    shown, made = run.call_counts
    if shown < made:
        yield _words(f"The replay begins late: it has the last {shown:,} of up to {made:,} calls of a rank.")
    yield Part(framed(run.replay.html, "Replay", 720), "The replay is in the page.")


def program(run: RunRecord) -> Iterator[Part]:
    """Yield the printed lines."""
    for ranks, lines in run.output:
        name = who(ranks)
        yield Part(f'<div class="lines"><h3>{name}</h3><pre>{escape(lines)}</pre></div>', f"[{name}]\n{lines}")
    if not run.output:
        yield _words("No rank printed anything.")


# -- parts -------------------------------------------------------------------------------------------------------------


def _words(text: str) -> Part:
    return Part(f"<p>{escape(text)}</p>", text)


def _message(text: str) -> Part:
    """Return the message of a failed run: its indented lines are about code."""
    shown = ""
    for number, line in enumerate(text.splitlines()):
        tag = "h3" if number == 0 else "pre" if line.startswith(" ") else "p"
        line = line[:1].upper() + line[1:]
        marked = CODE.sub(r"<code>\1</code>", escape(line.strip()))
        shown += f"<{tag}>{marked}</{tag}>"
    return Part(f'<div class="failed">{shown}</div>', text)


def _table(head: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Part:
    table = Table(head=head, rows=tuple(map(tuple, rows)))
    html = SHORT.sub(lambda cell: cell[0].replace(" ", "&nbsp;"), table.html)
    return Part(f'<div class="wide" tabindex="0">{html}</div>', repr(table))


def _figure(picture: Picture) -> Part:
    return Part(picture.html, repr(picture))
