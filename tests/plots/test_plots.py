"""Figures of measurements: what they say, that they say it as text too, and that they are legible in both themes."""

import re
import time
import xml.etree.ElementTree as ET
from base64 import b64decode
from dataclasses import dataclass, field
from html import unescape
from itertools import pairwise
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib import CourseError, World, mark
from course_lib.parallel import one_forward_one_backward
from course_lib.planner import Validation, validate
from course_lib.plots import (
    compare_memory,
    curve,
    move_cuts,
    move_schedules,
    move_sequence,
    move_units,
    move_zero,
    plot_buckets,
    plot_comm,
    plot_flat,
    plot_memory,
    plot_mesh,
    plot_ranks,
    plot_ring,
    plot_schedule,
    plot_shards,
    plot_swap,
    plot_timeline,
    plot_validation,
)
from course_lib.plots.canvas import (
    CATEGORIES,
    COMPUTE,
    EARLIER,
    FETCHING,
    FORWARD,
    MEMBERS,
    MOVING,
    STALLED,
    THEMES,
    UPDATE,
    WAITING,
    ink_on,
    ticks,
)
from course_lib.plots.charts.curves import LOOKS
from course_lib.plots.comm import tint
from course_lib.plots.memory import MOST_PLACES, places

COLOURS = [*CATEGORIES.values(), EARLIER, FORWARD, COMPUTE, UPDATE, FETCHING, WAITING, STALLED, *MEMBERS]
SVG = "http://www.w3.org/2000/svg"
RING = [[0, 12_800_000, 0], [0, 0, 12_800_000], [12_800_000, 0, 0]]


def interval(start, end, **about):
    return SimpleNamespace(start=start, end=end, **about)


def in_flight(start, end, op="all_reduce"):
    return interval(start, end, call=SimpleNamespace(op=op))


@dataclass(frozen=True)
class Lane:
    """A timeline as `plot_timeline` reads it."""

    rank: int
    overlap: float | None = 0.25
    start: float = 0.0
    end: float = 0.4
    computed: list[Any] = field(default_factory=lambda: [interval(0, 0.1), interval(0.3, 0.4)])
    waited_for_peers: list[Any] = field(default_factory=lambda: [interval(0.1, 0.2)])
    waited_for_bytes: list[Any] = field(default_factory=lambda: [interval(0.2, 0.3)])
    in_flight: list[Any] = field(default_factory=lambda: [in_flight(0.2, 0.35)])

    def __str__(self) -> str:
        return f"rank {self.rank} in words"


class Memory:
    """A memory report as `plot_memory` reads it."""

    def __init__(self, *held, again=(), **marks) -> None:
        """Report what was held.

        Args:
            held: bytes of parameters and of activations, one pair a millisecond.
            again: label and millisecond of a mark that is used again later.
            marks: the millisecond by label.
        """
        names = ("parameters", "activations")
        moments = [SimpleNamespace(by_category=dict(zip(names, each, strict=True)), holdings=()) for each in held]
        self.timeline = []
        for step, (before, after) in enumerate(pairwise([(0, 0), *held])):
            deltas = {name: b - a for name, a, b in zip(names, before, after, strict=True)}
            made = {"operator": "mm", "line": None}
            self.timeline.append(SimpleNamespace(seconds=step / 1000, deltas=deltas, highest_bytes=sum(after), **made))
        self.at_peak = max(moments, key=lambda moment: sum(moment.by_category.values()), default=None)
        self.peak_bytes = max(map(sum, held), default=0)
        self.by_category = moments[-1].by_category if moments else {}
        self.marks = {label: moments[step] for label, step in marks.items()}
        in_order = sorted([*marks.items(), *again], key=itemgetter(1))
        self.marked = tuple((label, (step + 0.5) / 1000) for label, step in in_order)  # after that change


MEMORIES = [Memory((100, 0), (100, 50), (100, 0), forward=1), Memory((100, 0), (100, 20), (90, 0))]
RUNS = [
    SimpleNamespace(memory=MEMORIES),
    SimpleNamespace(memory=[Memory((100, 0), (60, 0), (60, 20), (60, 0), start=0, forward=2)]),
]
SHARDS = [("weight", 10, [(0, 0, 5), (1, 5, 10)]), ("bias", 4, [(0, 0, 4), (1, 0, 4)])]
PICTURES = {
    "comm": lambda: plot_comm(RING),
    "timeline": lambda: plot_timeline([Lane(0), Lane(1)]),
    "memory": lambda: plot_memory(MEMORIES),
    "compare_memory": lambda: compare_memory({"first": RUNS[0], "second": RUNS[1]}),
    "shards": lambda: plot_shards(SHARDS),
    "flat": lambda: plot_flat([("weight", 10), ("bias", 4)], 4),
    "curve": lambda: curve({"one process": [3.0, 2.0], "mine": [3.0, 2.0]}),
    "zero": lambda: move_zero().still,
    "cuts": lambda: move_cuts().still,
    "sequence": lambda: move_sequence().still,
    "bubble": lambda: move_schedules({"1F1B": one_forward_one_backward}).still,
    "buckets": lambda: plot_buckets([[("layer 1", 3)], [("layer 0", 2)]]),
    "units": lambda: move_units([("layer 0", 3), ("layer 1", 3)], world_size=2).still,
    "schedule": lambda: plot_schedule([one_forward_one_backward(rank, 2, 4, chunks=2) for rank in range(2)]),
    "mesh": lambda: plot_mesh({"replicate": 2, "shard": 4}, 4),
    "ranks": lambda: plot_ranks(len, [1, 2, 3]),
    "ring": lambda: plot_ring({"in order": [[(0, 1), (1, 0)], [(1, 1), (0, 2)]]}),
    "swap": lambda: plot_swap(4),
}


@pytest.fixture(params=PICTURES, scope="module")
def picture(request):
    return PICTURES[request.param]()


def texts(svg):
    return {"".join(element.itertext()).strip() for element in ET.fromstring(svg).iter(f"{{{SVG}}}text")}


def image(html):
    """The alternative text and the SVG of the one image in `html`."""
    ((caption, data),) = re.findall(r'<img alt="([^"]*)" [^>]*src="data:image/svg\+xml;base64,([^"]*)"', html)
    return unescape(caption), b64decode(data).decode()


def rects(svg, colour):
    """Left, top, width and height of the rectangles in that colour, without those of the legend."""
    found = (element.attrib for element in ET.fromstring(svg).iter(f"{{{SVG}}}rect"))
    boxes = [[float(a[side]) for side in ("x", "y", "width", "height")] for a in found if a["fill"] == colour]
    return [box for box in boxes if box[2:] != [12, 12]]


# Every figure


def test_a_figure_shows_itself_once_with_its_caption_and_its_text(picture) -> None:
    shown = picture._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert shown["text/plain"] == repr(picture) == f"{picture.caption}\n\n{picture.text}"
    assert "<svg" not in shown["text/html"]  # JupyterLab strips it where it does not trust a notebook
    assert image(shown["text/html"]) == (picture.caption, picture.svg)
    assert f">{picture.caption}</figcaption>" in unescape(shown["text/html"])
    assert f"<pre>{picture.text}</pre>" in unescape(shown["text/html"])


def test_a_caption_is_sentences(picture) -> None:
    assert picture.caption[0].isupper() or picture.caption[0].isdigit()
    assert picture.caption.endswith(".") and "  " not in picture.caption


def test_whatever_is_not_data_has_a_colour_of_the_theme(picture) -> None:
    drawn = picture.svg[picture.svg.index("</style>") :]
    data = {*COLOURS, tint(1)}
    fills = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawn))
    assert fills - data <= {"none", "url(#hatch)", "#000000", "#ffffff", *(f"var(--{name})" for name in THEMES["dark"])}
    for theme in THEMES.values():
        assert all(f"--{name}:{colour}" in picture.svg for name, colour in theme.items())


def test_no_figure_uses_one_kind_of_colour_for_another(picture) -> None:
    kinds = [{*CATEGORIES.values()} - {MOVING}, {*MEMBERS}]  # bytes that travel have one colour everywhere
    assert sum(any(f'fill="{colour}"' in picture.svg for colour in kind) for kind in kinds) <= 1


def test_a_figure_lies_within_its_borders(picture) -> None:
    root = ET.fromstring(picture.svg)
    left, _, width, height = map(float, root.attrib["viewBox"].split())
    for box in (element.attrib for element in root.iter(f"{{{SVG}}}rect")):
        if "100%" not in box.values():
            assert left <= float(box["x"]) and float(box["x"]) + float(box["width"]) <= left + width + 0.1
            assert float(box["y"]) >= 0 and float(box["y"]) + float(box["height"]) <= height
    for text in root.iter(f"{{{SVG}}}text"):
        assert 0 < float(text.attrib["y"]) <= height


def test_the_same_figure_drawn_again_is_the_same_to_the_letter(picture, request) -> None:
    assert PICTURES[request.node.callspec.params["picture"]]().svg == picture.svg


def luminance(colour):
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_areas_and_lines_differ_from_the_ground_of_both_themes(picture) -> None:
    root = ET.fromstring(picture.svg)
    colours = {path.attrib["stroke"] for path in root.iter(f"{{{SVG}}}path") if "stroke" in path.attrib}
    for box in (element.attrib for element in root.iter(f"{{{SVG}}}rect")):
        if "stroke" in box:
            colours.add(box["stroke"])
        elif "%" not in box["width"] and min(float(box["width"]), float(box["height"])) > 3:  # no room for an outline
            colours.add(box.get("fill", "none"))
    for colour in colours:
        if colour.startswith("#"):  # and no colour of the theme
            assert all(contrast(colour, theme["paper"]) >= 3 for theme in THEMES.values()), colour


def test_lines_of_a_curve_have_an_outline_where_a_theme_hides_them() -> None:
    svg = curve({f"run {number}": [number, number] for number in range(1, 7)}).svg
    strokes = [(colour, float(width)) for colour, width in re.findall(r"stroke: ([^;]+); stroke-width: ([\d.]+)", svg)]
    tints = [(colour, width) for colour, width in strokes if colour.upper() in MEMBERS]
    assert len(tints) == 4
    for colour, width in tints:
        if any(contrast(colour, theme["paper"]) < 3 for theme in THEMES.values()):
            assert strokes.index(("var(--faint)", width + 1.5)) < strokes.index(tints[0])
    for theme in THEMES.values():  # equal lines lie on each other: of up to four, each differs from the next
        assert all(contrast(*pair) > 2 for pair in pairwise(theme.get(look[6:-1], look) for look, _ in LOOKS[-4:]))


@pytest.mark.parametrize("colour", COLOURS)
def test_labels_are_legible_on_their_colour(colour) -> None:
    assert contrast(colour, ink_on(colour)) >= 4.5


def test_labels_are_legible_on_every_tint_of_the_heat_map() -> None:
    assert all(contrast(tint(step / 100), ink_on(tint(step / 100))) >= 4.5 for step in range(101))


def test_letters_have_11_to_18_pixels(picture) -> None:
    sizes = {float(size) for size in re.findall(r'font-size[=:]\s*"?([\d.]+)', picture.svg)}
    assert all(11 <= size <= 18 for size in sizes - {46})  # which only a number has, if it is what the figure says


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(0, [0]), (4, [0, 1, 2, 3, 4]), (150, [0, 50, 100, 150]), (0.9, [0, 0.5]), (7, [0, 2, 4, 6])],
)
def test_ticks_are_round(highest, expected) -> None:
    assert ticks(highest) == expected


@pytest.mark.parametrize("theme", THEMES)
def test_letters_are_legible_in_the_theme(theme) -> None:
    colours = THEMES[theme]
    for ground in ("paper", "shade"):
        assert contrast(colours["ink"], colours[ground]) >= 7 and contrast(colours["faint"], colours[ground]) >= 4.5


# What they say


def test_the_heat_map_names_who_sent_how_much() -> None:
    picture = plot_comm([[0, 1_000, 0], [0, 0, 0], [5, 2_500_000, 0]])
    assert {"1 kB", "5 bytes", "2.5 MB", "from ↓", "to rank →"} <= texts(picture.svg)
    assert picture.caption.endswith("Rank 2 sent most, to rank 1: 2.5 MB.")
    alike = plot_comm([[0, 0, 5], [5, 0, 0], [0, 0, 0]]).caption
    assert alike.endswith("Rank 0 sent most, to rank 2: 5 bytes. 1 other pair of ranks sent as much.")
    assert picture.text.split("\n") == [
        "rank 0 sent 1,000 bytes: 1,000 to rank 1",
        "rank 1 sent 0 bytes",
        "rank 2 sent 2,500,005 bytes: 5 to rank 0, 2,500,000 to rank 1",
    ]


@pytest.mark.parametrize(
    ("matrix", "caption"),
    [
        (RING, "All bytes go to the next rank, as on a ring: the same 12.8 MB from each rank."),
        ([[0, 5], [7, 0]], "as on a ring: at most 7 bytes from each rank."),
        ([[0]], "No rank sent anything."),
    ],
)
def test_the_heat_map_s_caption_says_what_to_see(matrix, caption) -> None:
    assert plot_comm(matrix).caption.endswith(caption)


def test_many_ranks_have_no_numbers_and_small_cells() -> None:
    matrix = [[10_000 * (b == (a + 1) % 20) for b in range(20)] for a in range(20)]
    picture = plot_comm(matrix)
    assert "10 kB" not in texts(picture.svg) and len(rects(picture.svg, tint(1))) == 20


def feet(svg):
    """The height of each text in a figure."""
    return {element.text: float(element.attrib["y"]) for element in ET.fromstring(svg).iter(f"{{{SVG}}}text")}


def test_a_line_has_its_name_at_its_end() -> None:
    at = feet(curve({"low": [3, 1], "high": [1, 3], "middle": [3, 2]}).svg)
    assert at["low"] - at["middle"] == pytest.approx(at["middle"] - at["high"], abs=0.2)
    assert at["low"] - at["high"] > 100


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    svg = curve({f"rank {rank}": [1.0, 2.0] for rank in range(20)}).svg
    names = sorted(foot for name, foot in feet(svg).items() if name and name.startswith("rank"))
    assert len(names) == 20 and all(after - before >= 12 for before, after in pairwise(names))
    assert names[0] > 0 and names[-1] < float(ET.fromstring(svg).attrib["viewBox"].split()[3])


def test_lines_that_differ_by_rounding_are_named_in_their_order() -> None:
    at = feet(curve({"alone": [3.0, 2.0], "ranks": [3.0, 2.0 + 1e-7], "yours": [3.0, 2.0 - 1e-7]}).svg)
    assert at["alone"] < at["ranks"] < at["yours"]


def test_six_lines_have_six_colours() -> None:
    root = ET.fromstring(curve({f"run {number}": [number, number] for number in range(1, 7)}).svg)
    assert len({box.attrib["fill"] for box in root.iter(f"{{{SVG}}}rect") if "stroke" in box.attrib}) == 6


def test_a_mark_is_a_line_with_its_name() -> None:
    picture = curve({"rank 0": [3, 2, 4]}, marks={"restart": 2.5})
    assert "restart" in texts(picture.svg) and picture.caption.endswith(" Restart at 2.5.")


def test_a_line_that_ends_in_nan_has_a_name() -> None:
    assert feet(curve({"diverged": [1.0, float("nan")], "trained": [1.0, 0.5]}).svg)["diverged"] > 0


def test_a_logarithmic_axis_within_a_power_of_ten_has_plain_numbers() -> None:
    assert {"30", "40", "50", "60"} <= texts(curve({"a": [30, 45, 60]}, log="y").svg)
    kept = curve({"a": [100_350, 401_400]}, x=[5000, 20_000])
    assert {"10,000", "20,000", "200,000", "400,000"} <= texts(kept.svg)
    assert "from 5000 to 20,000. a: from 100,350 to 401,400." in kept.caption


def test_the_time_chart_says_who_waits_and_what_is_hidden() -> None:
    idle = Lane(1, overlap=0.5, waited_for_peers=[interval(0.1, 0.11)])
    picture = plot_timeline([Lane(0), idle])
    assert picture.caption == (
        "Rank 0 waited longest for the others (100 ms), rank 1 least (10 ms). The rank that waits least is usually the "
        "slow one. Depending on the rank, 25 % to 50 % of the bytes moved while the rank was computing."
    )
    assert picture.text == "rank 0 in words\nrank 1 in words"
    assert {"rank 0", "rank 1", "computed", "waited for peers", "waited for bytes"} <= texts(picture.svg)
    of_a_step = plot_timeline([Lane(0), idle], between=(0.0, 0.1)).caption
    assert "for the others (100 ms)" in of_a_step
    assert of_a_step.startswith("The rows show one step; the bars and these numbers are of the whole run. ")


def test_the_time_chart_names_the_calls_whose_bytes_move() -> None:
    calls = [in_flight(0.1, 0.2, "reduce_scatter"), in_flight(0.3, 0.4, "all_gather")]
    assert {"reduce_scatter", "all_gather"} <= texts(plot_timeline([Lane(0, in_flight=calls)]).svg)


def test_calls_of_one_name_in_a_row_are_named_once() -> None:
    calls = [in_flight(at / 10, at / 10 + 0.05) for at in range(4)]
    assert plot_timeline([Lane(0, in_flight=calls)]).svg.count(">all_reduce<") == 1


def test_a_call_is_named_again_after_one_whose_name_has_no_room() -> None:
    called = [(0.1, "reduce_scatter"), (0.13, "all_gather"), (0.6, "reduce_scatter")]
    calls = [in_flight(start, start + 0.02, op) for start, op in called]
    svg = plot_timeline([Lane(0, in_flight=calls, end=0.7)]).svg
    assert (svg.count(">reduce_scatter<"), svg.count(">all_gather<")) == (2, 0)


def test_neighbouring_calls_of_different_names_have_no_name() -> None:
    calls = [in_flight(0.1, 0.2, "send"), in_flight(0.2, 0.3, "recv")]
    assert not {"send", "recv"} & texts(plot_timeline([Lane(0, in_flight=calls)]).svg)


@pytest.mark.parametrize(
    ("overlap", "caption"),
    [
        (None, "No rank sent anything."),
        (0.0, "No bytes moved while a rank was computing."),
        (0.36, "36 % of the bytes moved while the rank was computing."),
    ],
)
def test_the_time_chart_of_one_rank_names_no_other(overlap, caption) -> None:
    assert plot_timeline([Lane(0, overlap=overlap)]).caption == caption


def test_bars_of_the_time_chart_are_as_long_as_their_time() -> None:
    picture = plot_timeline([Lane(0)])
    (first, second, _), (wait,) = rects(picture.svg, COMPUTE), rects(picture.svg, WAITING)
    assert first[2] == pytest.approx(second[2], abs=0.2) == pytest.approx(wait[2], abs=0.2)
    assert first[0] + first[2] == pytest.approx(wait[0], abs=0.2)


def test_a_bar_for_each_rank_divides_its_bytes_into_hidden_and_exposed() -> None:
    svg = plot_timeline([Lane(0), Lane(1, overlap=None), Lane(2, overlap=1.0)]).svg
    assert {"25 % hidden", "75 % exposed", "100 % hidden"} <= texts(svg)
    assert "0 % exposed" not in texts(svg) and svg.count(">rank 1<") == 1  # which sent nothing
    hidden, exposed = rects(svg, COMPUTE)[-2], rects(svg, STALLED)[-1]
    assert exposed[2] == pytest.approx(3 * hidden[2], abs=3)


def test_a_part_of_the_run_fills_the_chart() -> None:
    svg = plot_timeline([Lane(0)], (0.1, 0.3)).svg
    (wait,), (stalled, _) = rects(svg, WAITING)[-1:], rects(svg, STALLED)[-2:]
    assert (wait[2], stalled[2]) == (pytest.approx(350), pytest.approx(350))
    assert len(rects(svg, COMPUTE)) == len(rects(plot_timeline([Lane(0)]).svg, COMPUTE)) - 2
    assert {"200", "milliseconds from the start of the step"} <= texts(svg)


def test_a_long_run_does_not_make_a_heavy_figure() -> None:
    steps = [interval(step / 1000, (step + 0.5) / 1000) for step in range(5000)]
    assert len(plot_timeline([Lane(0, computed=steps, end=5)]).svg) < 100_000


def test_equal_ranks_share_a_panel() -> None:
    picture = plot_memory([Memory((100, 50))] * 3 + [Memory((100, 90))])
    assert {"ranks 0-2, alike", "rank 3"} <= texts(picture.svg)
    assert picture.text.split("\n") == [
        "ranks 0-2, alike: peak 150 bytes; at the end parameters 100 bytes, activations 50 bytes",
        "rank 3: peak 190 bytes; at the end parameters 100 bytes, activations 90 bytes",
    ]


def test_ranks_share_a_panel_if_three_digits_do_not_tell_them_apart() -> None:
    memories = [Memory((1_992_112, 0), (500_000, 0)), Memory((1_992_152, 0), (500_000, 0))]
    assert plot_memory(memories).text.startswith("ranks 0, 1, alike: peak 1,992,112 to 1,992,152 bytes;")


def test_titles_take_the_place_of_ranks() -> None:
    picture = plot_memory(MEMORIES, titles=["sgd", "adam"])
    assert {"sgd", "adam"} <= texts(picture.svg) and "rank 0" not in texts(picture.svg)
    assert picture.caption.startswith("The highest peak is 150 bytes (sgd): ")
    pairs = plot_memory([*MEMORIES, *MEMORIES], titles=["stage 0", "stage 0", "stage 1", "stage 1"])
    assert {"stage 0: rank 0", "stage 0: rank 1", "stage 1: rank 2"} <= texts(pairs.svg)


def test_a_title_is_needed_for_each_rank() -> None:
    with pytest.raises(ValueError, match=r"1 titles for 2 ranks\. Give one title for each rank"):
        plot_memory(MEMORIES, titles=["sgd"])


def test_memory_names_its_peak() -> None:
    alone, other = Memory((100, 50)), Memory((150, 0))
    assert plot_memory([alone, other]).caption == (
        "Every rank holds 150 bytes at its peak. On rank 0: parameters 100 bytes, activations 50 bytes."
    )
    assert plot_memory([alone, alone]).caption.startswith("Every rank holds 150 bytes at its peak: parameters")
    assert plot_memory([alone]).caption == (
        "The rank holds 150 bytes at its peak: parameters 100 bytes, activations 50 bytes."
    )


def test_memory_names_the_highest_peak_and_every_mark() -> None:
    picture = plot_memory(MEMORIES)
    assert picture.caption == (
        "The highest peak is 150 bytes (rank 0): parameters 100 bytes, activations 50 bytes. The lowest is 120 bytes."
    )
    assert picture.text.split("\n") == [
        "rank 0: peak 150 bytes; at the end parameters 100 bytes",
        "  forward: parameters 100 bytes, activations 50 bytes",
        "rank 1: peak 120 bytes; at the end parameters 90 bytes",
    ]
    assert {"rank 0", "rank 1", "peak 150 bytes", "peak 120 bytes", "activations"} <= texts(picture.svg)
    assert "optimizer" not in texts(picture.svg)  # nothing of it was held


def test_a_phase_is_the_time_before_its_mark() -> None:
    held = [(100, number) for number in range(100)]
    picture = plot_memory([Memory(*held, **{"made": 9, "after forward": 49, "step()": 89})])
    names = {e.text: float(e.attrib["x"]) for e in ET.fromstring(picture.svg).iter(f"{{{SVG}}}text")}
    place = {label: 70 + 6.9 * (number + 1) for label, number in (("made", 9), ("forward", 49), ("step", 89))}
    assert names["forward"] == pytest.approx((place["made"] + place["forward"]) / 2, abs=0.1)
    assert names["step"] == pytest.approx((place["forward"] + place["step"]) / 2, abs=0.1)
    assert "made" not in names  # nobody marked its beginning
    assert rects(picture.svg, "var(--shade)") == [
        [pytest.approx(place["made"], abs=0.1), pytest.approx(58), pytest.approx(40 * 6.9, abs=0.1), 144]
    ]


def test_a_loop_names_its_phases_in_each_step() -> None:
    held = [(100, number) for number in range(100)]
    memory = Memory(*held, made=9, step=89, again=[("step", 49)])
    svg = plot_memory([memory]).svg
    steps = [float(e.attrib["x"]) for e in ET.fromstring(svg).iter(f"{{{SVG}}}text") if e.text == "step"]
    assert steps == [pytest.approx(70 + 6.9 * middle, abs=0.1) for middle in (30, 70)]


def test_names_of_narrow_phases_are_left_out_where_they_would_overlap() -> None:
    held = [(100, number) for number in range(100)]
    svg = plot_memory([Memory(*held, made=9, start=49, freed=52, moved=54, forward=58, end=98)]).svg
    at = feet(svg)
    assert at["start"] == at["freed"] == at["end"] == at["forward"] - 14
    assert "moved" not in texts(svg)


def test_layers_are_as_high_as_what_is_held() -> None:
    drawn = places(MEMORIES[1].timeline)
    assert [place.number for place in drawn] == [0, 1, 2] and [place.highest for place in drawn] == [100, 120, 90]
    assert [place.held["parameters"] for place in drawn] == [100, 100, 90]
    assert [place.held["activations"] for place in drawn] == [0, 20, 0]


def test_a_peak_of_one_moment_is_drawn_in_the_longest_run() -> None:
    held = [(100, 0)] * 5000
    held[3333] = (100, 80)
    drawn = places(Memory(*held).timeline)
    assert len(drawn) == MOST_PLACES and all(a.number < b.number for a, b in pairwise(drawn))
    highest = max(drawn, key=lambda place: place.highest)
    assert highest.highest == sum(highest.held.values()) == 180 and highest.number == 3333


def test_ranks_that_held_nothing_are_drawn_empty() -> None:
    assert plot_memory([Memory(), Memory()]).caption == "No rank held anything."


def test_the_first_eight_panels_are_drawn_and_the_text_has_all() -> None:
    picture = plot_memory([Memory((rank + 1, 0)) for rank in range(10)])
    assert "The figure shows the first 8 of 10 different ranks." in picture.caption
    assert "rank 7" in texts(picture.svg) and "rank 8" not in texts(picture.svg)
    assert picture.text.endswith("rank 9: peak 10 bytes; at the end parameters 10 bytes")


def test_bars_compare_the_fullest_rank_of_each_run() -> None:
    picture = compare_memory({"first": RUNS[0], "second": RUNS[1]})
    assert picture.caption == (
        "The fullest rank of each run at its peak. first: 150 bytes. The least is second: 100 bytes, 67 % of 150 bytes."
    )
    assert picture.text == (
        "first: 150 bytes: parameters 100 bytes, activations 50 bytes\nsecond: 100 bytes: parameters 100 bytes"
    )
    turned = compare_memory({"second": RUNS[1], "first": RUNS[0]})
    assert turned.caption.endswith("second: 100 bytes. The most is first: 150 bytes, 150 % of 100 bytes.")
    first, second = rects(picture.svg, CATEGORIES["parameters"])
    assert first[2] == second[2] and len(rects(picture.svg, CATEGORIES["activations"])) == 1


def test_bars_compare_runs_at_a_mark() -> None:
    at_mark = compare_memory({"second": RUNS[1]}, at="forward")
    assert at_mark.text == "second: 80 bytes: parameters 60 bytes, activations 20 bytes"
    assert at_mark.caption == "The fullest rank of each run at the mark 'forward'. second: 80 bytes."


def test_runs_without_the_mark_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"'first' has no mark 'forward' on some rank\. Marks of its rank 0: 'forward'"
    ):
        compare_memory({"first": RUNS[0]}, at="forward")
    for runs in ({}, RUNS[0]):
        with pytest.raises(ValueError, match=r"compare_memory: no run by name in this \w+\. Give at least one"):
            compare_memory(runs)


def test_a_run_that_held_nothing_is_an_empty_bar() -> None:
    assert compare_memory({"idle": SimpleNamespace(memory=[Memory()])}).text == "idle: 0 bytes: nothing"


def test_most_of_other_is_named_where_no_category_is_larger() -> None:
    scores = SimpleNamespace(
        category="other", total_bytes=60, count=2, layout="float32 [4, 4]", operator="softmax", line=None
    )
    small = SimpleNamespace(category="other", total_bytes=5, count=1, layout="small", operator="add", line=None)
    memory = Memory((50, 0), (50, 0))
    memory.at_peak = SimpleNamespace(by_category={"parameters": 50, "other": 65}, holdings=[small, scores])
    named = " Most of “other”: 2 x float32 [4, 4], made by softmax, 60 bytes."
    assert plot_memory([memory]).caption.endswith(named)
    assert compare_memory({"one": SimpleNamespace(memory=[memory])}).caption.endswith(named)
    memory.at_peak.by_category["parameters"] = 66
    assert "Most of" not in plot_memory([memory]).caption


def test_a_long_name_of_a_narrow_tensor_loses_its_beginning() -> None:
    tensors = [(f"blocks.{block}.up.weight", 10, [(0, 0, 10)]) for block in range(9)]
    assert "up.weight" in texts(plot_shards(tensors).svg) and "up" in texts(plot_shards(tensors * 2).svg)


def test_slices_are_drawn_to_scale_with_the_total_of_each_rank() -> None:
    picture = plot_shards(SHARDS)
    assert {"weight [10]", "bias [4]", "rank 0: 9 elements", "rank 1: 9 elements"} <= texts(picture.svg)
    assert picture.caption.endswith("Of 14 elements, no rank holds 0, and more than one rank holds 4.")
    assert picture.text.split("\n") == [
        "weight (10 elements): rank 0: 0 to 5; rank 1: 5 to 10",
        "bias (4 elements): rank 0: 0 to 4; rank 1: 0 to 4",
    ]
    half, bias = rects(picture.svg, MEMBERS[0])
    assert (half[2] + 1) / 5 == pytest.approx((bias[2] + 1) / 4, rel=0.01)


def test_neighbouring_slices_of_a_rank_are_one_band() -> None:
    picture = plot_shards([("weight", 10, [(0, 0, 10)]), ("bias\x1b", 4, [(0, 0, 4)])])
    assert rects(picture.svg, MEMBERS[0]) == [[0, 56, 759, 26]]


@pytest.mark.parametrize(
    ("slices", "caption"),
    [
        ([(0, 0, 5), (1, 5, 10)], "Exactly one rank holds each of the 10 elements."),
        ([(0, 0, 3), (1, 3, 6), (2, 6, 9)], "no rank holds 1, and more than one rank holds 0."),
        ([(0, 0, 6), (1, 5, 10), (2, 0, 0)], "no rank holds 0, and more than one rank holds 1."),
        ([(0, 2, 4), (1, 2, 4), (2, 3, 9)], "no rank holds 3, and more than one rank holds 2."),
        ([], "no rank holds 10, and more than one rank holds 0."),
    ],
)
def test_elements_that_no_rank_or_several_hold_are_counted(slices, caption) -> None:
    assert plot_shards([("flat", 10, slices)]).caption.endswith(caption)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "plot_shards got no tensor"),
        ([("w", 10, [(2, 8, 12)])], "rank 2 holds elements 8 to 12 of 'w', which has 10"),
        ([("w", 10, [(2, 5, 3)])], "rank 2 holds elements 5 to 3"),
    ],
)
def test_slices_that_cannot_be_are_refused(tensors, message) -> None:
    with pytest.raises(ValueError, match=message):
        plot_shards(tensors)


def test_a_flat_tensor_has_equal_shards_and_hatched_padding() -> None:
    picture = plot_flat([("weight", 10), ("bias", 4)], 4)
    assert picture.caption == (
        "2 parameters, 14 elements end to end, become 4 shards of 4 elements. Padding: 2 elements. The borders between "
        "ranks cut 2 of the parameters: weight, bias."
    )
    assert picture.text.split("\n") == [
        "weight (10 elements): rank 0: 0 to 4; rank 1: 4 to 8; rank 2: 8 to 10",
        "bias (4 elements): rank 2: 0 to 2; rank 3: 2 to 4",
        "padding (2 elements): rank 3: 0 to 2",
    ]
    assert rects(picture.svg, "url(#hatch)") == [[665, 56, 95, 26]]  # 2 of 16 elements
    assert rects(picture.svg, MEMBERS[3]) == [[570, 56, 94, 26]]  # 2 elements, and not the padding


def test_a_flat_tensor_that_divides_has_no_padding() -> None:
    picture = plot_flat([("weight", 8)], 4)
    assert not rects(picture.svg, "url(#hatch)") and "Padding: 0 elements." in picture.caption


# Of a run


def test_a_run_draws_who_sent_what_and_when() -> None:
    def program() -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1000))

    run = World(2).run(program)
    assert run.plot_comm().text.startswith("rank 0 sent 4,000 bytes: 4,000 to rank 1")
    assert run.plot_timeline().text.startswith("rank 0, ")


def test_a_run_draws_the_time_between_two_uses_of_a_mark() -> None:
    def program() -> None:
        mark("made")
        for _ in range(3):
            time.sleep(0.02)
            mark("after step")

    run = World(2).run(program)
    step = float(max(texts(run.plot_timeline("after step").svg) & set(map(str, range(100))), key=float))
    rest = float(max(texts(run.plot_timeline("made").svg) & set(map(str, range(1000))), key=float))
    assert 10 <= step < rest
    with pytest.raises(CourseError, match="a rank has no such mark"):
        run.plot_timeline("after backward")


def test_a_run_draws_the_slices_that_its_ranks_returned() -> None:
    def slices():
        import torch.distributed as dist

        half = 5 * dist.get_rank()
        return [("weight", 10, half, half + 5)]

    assert World(2).run(slices).plot_shards().text == "weight (10 elements): rank 0: 0 to 5; rank 1: 5 to 10"


@pytest.mark.slow
def test_each_published_value_is_one_point_of_the_validation_and_each_kind_a_panel() -> None:
    few = [run for run in validate().runs if run.source not in ("Ultra-Scale Playbook", "llm-foundry")]
    validation = Validation(runs=tuple(few))
    svg = plot_validation(validation).svg
    memory, speed = (len(points.split()) for points in re.findall(r'<polyline points="([^"]*)"', svg))
    values = [one.what for one in validation.compared]
    assert memory == values.count("active") + values.count("reserved") and speed == values.count("MFU")
    tensor = [one for one in validation.compared if one.run.kind == "TP" and one.what in ("active", "reserved")]
    near = [abs(one.error) <= 0.1 for one in tensor]
    assert f"TP: {100 * sum(near) / len(near):.0f} %" in svg
