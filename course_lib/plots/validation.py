"""The planner against published runs: one point for each run, planned over published."""

from matplotlib.axes import Axes

from ..planner import Validation
from .axes import STAND_INS, axes, in_pixels
from .canvas import CATEGORIES, INK, Canvas, short
from .picture import Picture

SHAPES = (  # paths around 0, 0: a circle, a square, two triangles with a diamond between them, and a cross
    "M-1.9 0a1.9 1.9 0 1 1 3.8 0a1.9 1.9 0 1 1 -3.8 0z",
    "M-1.9 -1.9h3.8v3.8h-3.8z",
    "M0 -1.9l1.9 3.8h-3.8z",
    "M0 -2.6l2.6 2.6l-2.6 2.6l-2.6 -2.6z",
    "M0 1.9l1.9 -3.8h-3.8z",
    "M-.6 -1.9h1.2v1.3h1.3v1.2h-1.3v1.3h-1.2v-1.3h-1.3v-1.2h1.3z",
)
PANELS = (  # values, their unit, and a title
    (("active", "reserved"), 2**30, "memory of a GPU, GiB"),
    (("MFU",), 0.01, "model FLOPs utilization, %"),
)


def plot_validation(validation: Validation) -> Picture:
    """Draw planned against published memory, in GiB, and model FLOPs utilization, in per cent."""
    canvas, ink = Canvas(), STAND_INS[INK]
    sources = dict.fromkeys(one.run.source for one in validation.compared)
    looks = dict(zip(sources, zip(CATEGORIES.values(), SHAPES, strict=True), strict=False))
    canvas.legend((source, colour) for source, (colour, _) in looks.items())
    points: list[tuple[str, Axes, float, float]] = []
    with axes(canvas, 330, columns=2) as panels:
        for panel, (values, unit, title) in zip(panels, PANELS, strict=True):
            found = [one for one in validation.compared if one.what in values]
            most = max((max(one.published, one.planned) / unit for one in found), default=1.0)
            panel.plot([0, most], [0, most], color=ink, linewidth=1)
            panel.plot([0, most / 1.1], [0, most], [0, most], [0, most / 1.1], color=ink, linewidth=0.7, linestyle=":")
            panel.text(most / 1.1, most, "+10 % ", ha="right", va="top", color=ink)
            panel.text(most, most / 1.1, " −10 %", va="center", color=ink)
            panel.set(xlabel=f"published {title}", ylabel=f"planned {title}")
            points += [(one.run.source, panel, one.published / unit, one.planned / unit) for one in found]
        panels[0].figure.canvas.figure.draw_without_rendering()  # which gives the panels their places
        for source, (colour, shape) in looks.items():
            places = [in_pixels(panel, x, y) for owner, panel, x, y in points if owner == source]
            _draw_points(canvas, places, colour, shape)
    caption = (
        f"{len(points)} values of published runs, planned. A point on the line is planned exactly; "
        "between the dotted lines the plan is within 10 %."
    )
    return canvas.picture(caption, str(validation))


def _draw_points(canvas: Canvas, places: list[tuple[float, float]], colour: str, shape: str) -> None:
    """Draw `shape` at each of `places`. One element for all of them takes a tenth of the bytes of one for each."""
    name, look = f"of-{colour[1:]}", f'fill="{colour}" stroke="{colour}" fill-opacity="0.6" stroke-opacity="0.6"'
    marker = f'<marker id="{name}" overflow="visible" markerUnits="userSpaceOnUse"><path d="{shape}" {look}/></marker>'
    points = " ".join(f"{short(x)},{short(y)}" for x, y in places)
    canvas.nest(f'{marker}<polyline points="{points}" fill="none" style="marker: url(#{name})"/>', 0)
