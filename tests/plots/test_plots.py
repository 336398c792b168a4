"""Figures: what they say, that they say it as text too, and that they are right in both themes."""

import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from dataclasses import dataclass, field
from html import unescape
from itertools import pairwise

import matplotlib.style
import numpy as np
import pytest

from course_lib import CourseError, World
from course_lib.plots import plot_comm, plot_memory, plot_shards, plot_timeline
from course_lib.plots.comm import LIGHT
from course_lib.plots.memory import MOST_LINES, MOST_PLACES, lines_apart, stacked
from course_lib.plots.picture import BLUE, GREY, PALETTE, in_bytes, short_path

SVG = "http://www.w3.org/2000/svg"
RING = [[0, 12_800_000, 0], [0, 0, 12_800_000], [12_800_000, 0, 0]]


@dataclass(frozen=True)
class Interval:
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """A timeline as `plot_timeline` reads it."""

    rank: int
    overlap: float | None = 0.25
    start: float = 0.0
    end: float = 0.4
    computed: list[Interval] = field(default_factory=lambda: [Interval(0, 0.1), Interval(0.3, 0.4)])
    waited_for_peers: list[Interval] = field(default_factory=lambda: [Interval(0.1, 0.2)])
    waited_for_bytes: list[Interval] = field(default_factory=lambda: [Interval(0.2, 0.3)])
    in_flight: list[Interval] = field(default_factory=lambda: [Interval(0.2, 0.35)])

    def __str__(self):
        return f"rank {self.rank} in words"


@dataclass(frozen=True)
class Moment:
    seconds: float
    by_category: dict[str, int]


@dataclass(frozen=True)
class Change:
    seconds: float
    deltas: dict[str, int]
    highest_bytes: int


class Memory:
    """A memory report as `plot_memory` reads it."""

    def __init__(self, *held, **marks):
        """held: bytes of parameters and of activations, one pair a millisecond; marks: a label and its millisecond."""
        moments = [
            Moment(step / 1000, {"parameters": parameters, "activations": activations})
            for step, (parameters, activations) in enumerate(held)
        ]
        self.timeline = [
            Change(step / 1000, {"parameters": after[0] - before[0], "activations": after[1] - before[1]}, sum(after))
            for step, (before, after) in enumerate(pairwise([(0, 0), *held]))
        ]
        self.at_peak = max(moments, key=lambda moment: sum(moment.by_category.values()), default=None)
        self.peak_bytes = max(map(sum, held), default=0)
        self.by_category = moments[-1].by_category if moments else {}
        self.marks = {label: moments[step] for label, step in marks.items()}


MEMORIES = [Memory((100, 0), (100, 50), (100, 0), forward=1), Memory((100, 0), (100, 20), (90, 0))]
SHARDS = [("weight", 10, [(0, 0, 5), (1, 5, 10)]), ("bias", 4, [(0, 0, 4), (1, 0, 4)])]
PICTURES = {
    "comm": lambda: plot_comm(RING),
    "timeline": lambda: plot_timeline([Lane(0), Lane(1)]),
    "memory": lambda: plot_memory(MEMORIES),
    "shards": lambda: plot_shards(SHARDS),
}


@pytest.fixture(params=PICTURES)
def picture(request):
    return PICTURES[request.param]()


def texts(svg):
    return {"".join(element.itertext()).strip() for element in ET.fromstring(svg).iter(f"{{{SVG}}}text")}


def image(html):
    """The alternative text and the SVG of the one image in `html`."""
    ((caption, data),) = re.findall(r'<img alt="([^"]*)" [^>]*src="data:image/svg\+xml;base64,([^"]*)">', html)
    return unescape(caption), b64decode(data).decode()


def height(svg, text):
    """Points from the top of the figure to the foot of the text."""
    (element,) = (element for element in ET.fromstring(svg).iter(f"{{{SVG}}}text") if element.text == text)
    return float(element.attrib["y"])


# Every figure


def test_a_figure_shows_itself_once_with_its_caption_and_its_text(picture):
    shown = picture._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    assert shown["text/plain"] == repr(picture) == f"{picture.caption}\n\n{picture.text}"
    assert "<svg" not in shown["text/html"]  # JupyterLab strips it where it does not trust a notebook
    assert image(shown["text/html"]) == (picture.caption, picture.svg)
    assert f"<figcaption>{picture.caption}</figcaption>" in shown["text/html"]
    assert f"<pre>{picture.text}</pre>" in shown["text/html"]


def test_whatever_is_not_data_is_black_on_white(picture):
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", picture.svg))
    assert {"#000000", "#ffffff"} <= colours
    assert colours <= {colour.lower() for colour in (*PALETTE, GREY)} | {"#ffffff", "#000000"} | CIVIDIS


CIVIDIS = {matplotlib.colors.to_hex(matplotlib.colormaps["cividis"](i)) for i in range(256)}


def test_a_figure_has_a_white_background_of_its_own_whatever_the_style():
    with matplotlib.style.context("dark_background"):
        pictures = [draw() for draw in PICTURES.values()]
    for picture in pictures:
        figure, axes = list(ET.fromstring(picture.svg).iter(f"{{{SVG}}}path"))[:2]
        assert figure.attrib["d"].startswith("M 0 ")
        assert figure.attrib["style"] == axes.attrib["style"] == "fill: #ffffff"


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("M 0.16 2 \nL 1 2 \nL 3 2 \nL 3 5 \nL 3 9 \nz\n", "M 0.1 2 L 3 2 L 3 9 z"),
        ("M 0 0 \nL 0 5 \nL 0 3 \nL 0 4", "M 0 0 L 0 5 L 0 3 L 0 4"),  # there and back again
        ("M 0 0 \nL 1 1 \nL 2 2", "M 0 0 L 1 1 L 2 2"),
        ("M 0 0 \nC 1 1 2 0 3 0 \nL 4 0 \nL 5 0 \nM 6 0 \nL 7 0", "M 0 0 C 1 1 2 0 3 0 L 5 0 M 6 0 L 7 0"),
    ],
)
def test_a_path_is_drawn_without_the_places_that_its_straight_lines_pass(path, short):
    assert short_path(path) == short


def test_the_same_figure_drawn_again_is_the_same_to_the_letter():
    first, again = (plot_shards([("w", 8, [(0, 0, 8)])]) for _ in range(2))

    assert first.svg == again.svg


def test_drawing_leaves_matplotlib_as_it_was(picture):
    from matplotlib import _pylab_helpers

    assert matplotlib.rcParams["text.color"] == "black"
    assert _pylab_helpers.Gcf.get_all_fig_managers() == []


def luminance(colour):
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(colour)]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), channels, strict=True))


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
def test_numbers_of_ranks_are_legible_on_their_colour(colour):
    assert contrast(colour, "white" if colour == BLUE else "black") >= 4.5


# What they say


def test_the_heat_map_names_who_sent_how_much():
    picture = plot_comm([[0, 1_000, 0], [0, 0, 0], [5, 2_500_000, 0]])
    assert {"1 kB", "5 B", "2.5 MB", "from rank", "to rank"} <= texts(picture.svg)
    assert picture.caption.endswith("Most went from rank 2 to rank 1: 2.5 MB.")
    assert picture.text.split("\n") == [
        "rank 0 sent 1,000 bytes: 1,000 to rank 1",
        "rank 1 sent 0 bytes",
        "rank 2 sent 2,500,005 bytes: 5 to rank 0, 2,500,000 to rank 1",
    ]


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        (RING, "All bytes go to the next rank, as on a ring: the same 12.8 MB from each."),
        ([[0, 5], [7, 0]], "as on a ring: at most 7 B from each."),
        ([[0]], "No rank sent anything."),
    ],
)
def test_the_heat_map_s_caption_says_what_to_see(matrix, told):
    assert plot_comm(matrix).caption.endswith(told)


def test_numbers_in_the_heat_map_are_legible_on_every_colour():
    for part in (step / 1000 for step in range(1001)):
        colour = matplotlib.colormaps["cividis"](part)[:3]
        assert contrast(colour, "white" if part < LIGHT else "black") >= 4.5


def test_many_ranks_get_a_scale_in_place_of_numbers():
    matrix = [[10_000 * (b == (a + 1) % 20) for b in range(20)] for a in range(20)]
    picture = plot_comm(matrix)
    assert {"sent", "10 kB"} <= texts(picture.svg) and len(picture.svg) < 100_000


def test_the_gantt_chart_says_who_waits_and_what_is_hidden():
    idle = Lane(1, overlap=0.5, waited_for_peers=[Interval(0.1, 0.11)])
    picture = plot_timeline([Lane(0), idle])
    assert "Rank 0 waits longest for its peers, 100.0 ms, rank 1 least, 10.0 ms" in picture.caption
    assert "for 25% to 50% of the bytes" in picture.caption
    assert picture.text == "rank 0 in words\nrank 1 in words"
    assert {"rank 0", "rank 1", "computed", "waited for peers", "waited for bytes", "in flight"} <= texts(picture.svg)


def test_the_gantt_chart_of_ranks_that_sent_nothing_says_so():
    assert plot_timeline([Lane(0, overlap=None)]).caption.endswith("Nothing is sent.")


def test_a_long_run_does_not_make_a_heavy_figure():
    steps = [Interval(step / 1000, (step + 0.5) / 1000) for step in range(5000)]
    assert len(plot_timeline([Lane(0, computed=steps, end=5)]).svg) < 100_000


def test_memory_singles_no_rank_out_where_all_peaks_are_alike():
    alone, other = Memory((100, 50)), Memory((150, 0))
    assert plot_memory([alone, other]).caption == (
        "Every rank holds 150 B at its peak. On rank 0 that is parameters 100 B, activations 50 B."
    )
    assert plot_memory([alone]).caption == "Rank 0 holds 150 B at its peak: parameters 100 B, activations 50 B."


def test_memory_says_what_was_held_at_the_highest_peak():
    picture = plot_memory(MEMORIES)
    assert picture.caption == (
        "Rank 0 holds most at once, 150 B: parameters 100 B, activations 50 B. The lowest peak of a rank is 120 B."
    )
    assert picture.text.split("\n") == [
        "rank 0: peak 150 bytes; at the end parameters 100 B",
        "  forward: parameters 100 B, activations 50 B",
        "rank 1: peak 120 bytes; at the end parameters 90 B",
    ]
    assert {"rank 0", "rank 1", "forward", "peak 150 B", "peak 120 B", "optimizer"} <= texts(picture.svg)


def test_layers_are_as_high_as_what_is_held():
    numbers, edges, highest = stacked(MEMORIES[1].timeline)
    assert numbers.tolist() == [0, 1, 2] and highest.tolist() == [100, 120, 90]
    assert edges[[0, 1, 3, 6]].tolist() == [[0, 0, 0], [100, 100, 90], [100, 100, 90], [100, 120, 90]]


def test_a_peak_of_one_moment_is_drawn_in_the_longest_run():
    held = [(100, 0)] * 5000
    held[3333] = (100, 80)
    numbers, edges, highest = stacked(Memory(*held).timeline)
    assert len(numbers) == MOST_PLACES and (np.diff(numbers) > 0).all()
    assert highest.max() == edges[-1].max() == 180 and numbers[highest.argmax()] == 3333


def test_labels_that_would_touch_go_into_lines_of_their_own():
    assert lines_apart([(0, 50), (60, 90), (100, 120)]) == [0, 0, 0]
    assert lines_apart([(0, 50), (20, 70), (40, 90), (60, 80)]) == [0, 1, 2, 0]
    assert lines_apart([]) == []


def test_marks_that_are_close_together_can_be_read_and_so_can_the_peak():
    picture = plot_memory([Memory(*[(100, 50)] * 60, made=3, forward=5, backward=6, freed=55)])
    made, forward, backward, freed, peak = (
        height(picture.svg, label) for label in ("made", "forward", "backward", "freed", "peak 150 B")
    )
    assert made == freed < forward - 8 and forward < backward - 8 and backward < peak - 8


def test_more_marks_than_there_is_room_for_are_told_in_the_text():
    picture = plot_memory([Memory((100, 0), **{f"mark {number}": 0 for number in range(20)})])
    assert sum(text.startswith("mark ") for text in texts(picture.svg)) == MOST_LINES
    assert picture.text.count("  mark ") == 20


def test_ranks_that_held_nothing_are_drawn_empty():
    assert plot_memory([Memory(), Memory()]).caption == "No rank held anything."


def test_the_first_eight_ranks_are_drawn_and_all_are_told():
    picture = plot_memory([Memory((rank + 1, 0)) for rank in range(10)])
    assert "Drawn are ranks 0 to 7 of 10." in picture.caption
    assert "rank 7" in texts(picture.svg) and "rank 8" not in texts(picture.svg)
    assert picture.text.endswith("rank 9: peak 10 bytes; at the end parameters 10 B")


def test_slices_are_drawn_and_told():
    picture = plot_shards(SHARDS)
    assert {"weight [10]", "bias [4]", "rank 0", "rank 1"} <= texts(picture.svg)
    assert picture.caption.endswith("Of 14 elements, 0 are held by nobody and 4 by more than one rank.")
    assert picture.text.split("\n") == [
        "weight (10 elements): rank 0: 0 to 5; rank 1: 5 to 10",
        "bias (4 elements): rank 0: 0 to 4; rank 1: 0 to 4",
    ]


@pytest.mark.parametrize(
    ("slices", "told"),
    [
        ([(0, 0, 5), (1, 5, 10)], "Each of the 10 elements is held by exactly one rank."),
        ([(0, 0, 3), (1, 3, 6), (2, 6, 9)], "Of 10 elements, 1 are held by nobody and 0 by more than one rank."),
        ([(0, 0, 6), (1, 5, 10), (2, 0, 0)], "Of 10 elements, 0 are held by nobody and 1 by more than one rank."),
        ([(0, 2, 4), (1, 2, 4), (2, 3, 9)], "Of 10 elements, 3 are held by nobody and 2 by more than one rank."),
        ([], "Of 10 elements, 10 are held by nobody and 0 by more than one rank."),
    ],
)
def test_elements_that_nobody_or_several_hold_are_counted(slices, told):
    assert plot_shards([("flat", 10, slices)]).caption.endswith(told)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ([], "plot_shards got no tensor"),
        ([("w", 10, [(2, 8, 12)])], "rank 2 holds elements 8 to 12 of 'w', which has 10"),
        ([("w", 10, [(2, 5, 3)])], "rank 2 holds elements 5 to 3"),
    ],
)
def test_slices_that_cannot_be_are_refused(tensors, told):
    with pytest.raises(ValueError, match=told):
        plot_shards(tensors)


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_817_600, "12.8 MB"), (1.5e9, "1.5 GB"), (2e12, "2 TB")],
)
def test_bytes_are_told_in_the_unit_that_fits(count, told):
    assert in_bytes(count) == told


# Of a run


def test_a_run_draws_who_sent_what_and_when():
    def program():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1000))

    run = World(2).run(program)
    assert run.plot_comm().text.startswith("rank 0 sent 4,000 bytes: 4,000 to rank 1")
    assert run.plot_timeline().text.startswith("rank 0, ")


def test_a_run_draws_the_slices_that_its_ranks_returned():
    def slices():
        import torch.distributed as dist

        half = 5 * dist.get_rank()
        return [("weight", 10, half, half + 5)]

    assert World(2).run(slices).plot_shards().text == "weight (10 elements): rank 0: 0 to 5; rank 1: 5 to 10"


def test_a_run_that_returned_no_slices_says_what_to_return():
    with pytest.raises(CourseError, match=r"rank 0 returned 3\. Let every rank return a list with \(name, numel"):
        World(2).run(lambda: 3).plot_shards()
