"""The planner against published runs: one point for each run, planned over published."""

from ..planner import Validation
from .axes import STAND_INS, axes
from .canvas import CATEGORIES, INK, Canvas
from .picture import Picture

MARKERS = ("o", "s", "^", "D", "v", "P")
GIB = 2**30


def plot_validation(validation: Validation) -> Picture:
    """Draw planned against published memory, in GiB, and model FLOPs utilization, in per cent."""
    canvas, ink = Canvas(), STAND_INS[INK]
    sources = list(dict.fromkeys(one.run.source for one in validation.compared))
    looks = dict(zip(sources, zip(CATEGORIES.values(), MARKERS, strict=True), strict=False))
    canvas.legend((source, colour) for source, (colour, _) in looks.items())
    with axes(canvas, 330, columns=2) as panels:
        for panel, values, unit, title in (
            (panels[0], ("active", "reserved"), GIB, "memory of a GPU, GiB"),
            (panels[1], ("MFU",), 0.01, "model FLOPs utilization, %"),
        ):
            found = [one for one in validation.compared if one.what in values]
            for source, (colour, marker) in looks.items():
                mine = [one for one in found if one.run.source == source]
                published, planned = [one.published / unit for one in mine], [one.planned / unit for one in mine]
                panel.scatter(published, planned, s=14, color=colour, marker=marker, alpha=0.6)
            most = max((max(one.published, one.planned) / unit for one in found), default=1.0)
            panel.plot([0, most], [0, most], color=ink, linewidth=1)
            panel.plot([0, most / 1.1], [0, most], [0, most], [0, most / 1.1], color=ink, linewidth=0.7, linestyle=":")
            panel.set(xlabel=f"published {title}", ylabel=f"planned {title}")
    caption = (
        f"{len(validation.compared)} values of published runs, planned. A point on the line is planned exactly; "
        "between the dotted lines the plan is within 10 %."
    )
    return canvas.picture(caption, str(validation))
