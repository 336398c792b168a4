"""`RunReport`: the page of a run, one file that opens without a server and without a network."""

import os
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path

from ...errors import who
from ...planner import duration
from ..picture import framed
from .record import NOTHING, UNKNOWN, RunRecord, alike
from .sections import Part, sections

THEME = """
const follow = () => {
  const [red, green, blue] = getComputedStyle(frameElement).color.match(/[\\d.]+/g).map(Number);
  document.body.style.colorScheme = 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? "dark" : "light";
};
follow();
new MutationObserver(() => setTimeout(follow, 100)).observe(parent.document.body, {attributes: true});
"""
"""The script that gives a page in a notebook the notebook's theme: the letters around its frame are light, or dark."""


class RunReport(RunRecord):
    """The page of a run. It shows itself in a notebook; `print(report)` writes it as text."""

    @cached_property
    def _sections(self) -> dict[str, list[Part]]:
        return sections(self)

    @property
    def _about(self) -> list[str]:
        """What ran, and where and when, in words."""
        about = self.about
        return [*self._ranks, about.backend, f"torch {about.torch_version}", f"{about.began:%-d %B %Y, %H:%M}"]

    @property
    def _ranks(self) -> list[str]:
        world_size = self.about.world_size
        if not self.whole:
            return [f"rank {next(iter(self.ends))} of {world_size}"]
        took = duration(max((line.end for line in self.timelines.values()), default=0.0))
        return [f"{world_size} rank{'s' * (world_size > 1)}", took]

    @property
    def summary(self) -> str:
        """What each rank held, sent and waited for, equal ranks together, and warnings: lines for a terminal."""
        ranks_ran, *took = self._ranks
        lines = [f"-- {ranks_ran}: {', '.join([self.about.program, self.about.backend, *took])}"]
        for ranks, _, peak, sent, waited in alike(self):
            lines.append(f"   {who(ranks)}{', each' if len(ranks) > 1 else ''}")
            lines += [f"     peak {peak}"] if peak != UNKNOWN else []
            lines += [f"     sent {sent}"]
            lines += [f"     waited {waited}"] if waited not in (UNKNOWN, NOTHING) else []
        slowest = self.slowest if self.slowest.startswith("Slowest") else ""  # else no two ranks called a collective
        more = [self.about.note, *slowest.replace(" Fastest: ", "\nFastest: ").splitlines()]
        lines += [f"   {line}" for line in more if line]
        return "\n".join([*lines, *(f"   Warning: {warning}" for warning in self.warnings)])

    @property
    def html(self) -> str:
        """The page, which needs nothing else."""
        return self._page()

    def _page(self, script: str = "") -> str:
        title = escape(self.about.program)
        note = f"<p>{escape(self.about.note)}</p>" if self.about.note else ""
        style = (files(__package__) / "page.css").read_text("utf-8")
        shown = "".join(
            f"<section><h2>{heading}</h2>{''.join(part.html for part in parts)}</section>"
            for heading, parts in self._sections.items()
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{style}</style></head><body><main>"
            f"<header><h1>{title}</h1><p>{escape(' · '.join(self._about))}</p>{note}</header>"
            f"{shown}</main>{script}</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which any browser opens."""
        Path(path).write_text(self.html, encoding="utf-8", errors="replace")

    def __repr__(self) -> str:
        lines = [self.about.program, ", ".join(self._about), *filter(None, [self.about.note])]
        for heading, parts in self._sections.items():
            lines += ["", heading, *(part.text for part in parts)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        page = self._page(f"<script>{THEME}</script>")
        text = f"<details><summary>The report as text</summary><pre>{escape(repr(self))}</pre></details>"
        return framed(page, f"Report of {self.about.program}", 900) + text
