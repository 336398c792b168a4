"""The planner against published runs: a point for each value, and a panel for each way to cut a model."""

from collections.abc import Sequence

from ..planner import Compared, Validation
from .axes import BELOW, Box, InPixels, draw_axes, scale
from .canvas import INK, MEMBERS, SMALL, Canvas, percent, short
from .picture import Picture

LEFT, SIDE, APART = 44, 142, 192
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
        points = []
        for number, kind in enumerate(KINDS):
            panel = [one for one in found if one.run.kind == kind]
            if panel:
                box = Box(LEFT + number * APART, canvas.y + 36, SIDE, SIDE)
                at = _draw_panel(canvas, box, kind, panel, most, "planned" if number == 0 else "")
                points += [at(one.published / unit, one.planned / unit) for one in panel]
        canvas.nest(DOT.format(" ".join(f"{short(x)},{short(y - canvas.y)}" for x, y in points)), 36 + SIDE + BELOW)
        count += len(found)
    caption = (
        f"{count} values of published runs, planned. A point on the line is planned exactly; between the dotted lines "
        "the plan is within 10 %. TP is tensor parallel, PP pipeline parallel."
    )
    return canvas.picture(caption, str(validation))


def _draw_panel(canvas: Canvas, box: Box, kind: str, panel: Sequence[Compared], most: float, ylabel: str) -> InPixels:
    """Draw lines at equal values and 10 % from them, and how many runs are planned within 10 %."""
    near = percent(sum(abs(one.error) <= 0.1 for one in panel) / len(panel))
    canvas.text(box.left, box.top - 22, f"{kind}: {near}", **SMALL)
    canvas.text(box.left, box.top - 8, f"of {len(panel)} within 10 %", **SMALL)
    axis = scale([0.0, most])
    at = draw_axes(canvas, box, axis, axis, "published", ylabel)
    for end, dashes in (((most, most), "none"), ((most / 1.1, most), "1 3"), ((most, most / 1.1), "1 3")):
        canvas.line(*at(0.0, 0.0), *at(*end), INK, stroke_dasharray=dashes)
    return at
