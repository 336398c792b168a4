"""The planner against published runs: a point for each value, and a panel for each way to cut a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...planner import Compared, Validation
from ..canvas import INK, MEMBERS, Canvas, percent, short
from ..picture import Picture
from .axes import STAND_INS, axes, in_pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("data parallel", "TP", "PP", "TP and PP")
ROWS = (  # values, their unit, and a title
    (("active", "reserved"), 2**30, "Memory of a GPU, GiB"),
    (("MFU",), 0.01, "Model FLOPs utilization, %"),
)
DOT = (
    f'<marker id="dot" overflow="visible" markerUnits="userSpaceOnUse"><circle r="1.6" fill="{MEMBERS[1]}"/></marker>'
    '<polyline points="{}" fill="none" style="marker: url(#dot)"/>'
)
"""Dots at all points: one element for all of them takes a tenth of the bytes of one for each."""


def plot_validation(validation: Validation) -> Picture:
    """Draw planned against published memory, in GiB, and model FLOPs utilization, in per cent."""
    canvas, count = Canvas(), 0
    for values, unit, title in ROWS:
        found = [one for one in validation.compared if one.what in values]
        most = max((max(one.published, one.planned) / unit for one in found), default=1.0)
        canvas.title(title)
        with axes(canvas, 215, columns=len(KINDS)) as panels:
            panels[0].set(ylabel="planned")
            for panel, kind in zip(panels, KINDS, strict=True):
                _draw_panel(panel, kind, [abs(one.error) <= 0.1 for one in found if one.run.kind == kind], most)
            panels[0].figure.canvas.figure.draw_without_rendering()  # which gives the panels their places
            places = [_place(panels[KINDS.index(one.run.kind)], one, unit) for one in found]
            canvas.nest(DOT.format(" ".join(f"{short(x)},{short(y)}" for x, y in places)), 0)
        count += len(found)
    caption = (
        f"{count} values of published runs, planned. A point on the line is planned exactly; between the dotted lines "
        "the plan is within 10 %. TP is tensor parallel, PP pipeline parallel."
    )
    return canvas.picture(caption, str(validation))


def _draw_panel(panel: Axes, kind: str, near: Sequence[bool], most: float) -> None:
    """Draw lines at equal values and 10 % from them, and how many runs are planned within 10 %."""
    if not near:
        panel.set_axis_off()
        return
    ink = STAND_INS[INK]
    panel.plot([0, most], [0, most], color=ink, linewidth=1)
    panel.plot([0, most / 1.1], [0, most], [0, most], [0, most / 1.1], color=ink, linewidth=0.7, linestyle=":")
    panel.set(xlabel="published", title=f"{kind}: {percent(sum(near) / len(near))}\nof {len(near)} within 10 %")
    panel.title.set(color=ink, fontsize=11)


def _place(panel: Axes, one: Compared, unit: float) -> tuple[float, float]:
    return in_pixels(panel, one.published / unit, one.planned / unit)
