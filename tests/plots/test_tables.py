"""Tables and curves: what they show, and what they refuse."""

from fractions import Fraction

import pytest
import torch

from course_lib.plots import curve, table
from course_lib.plots.canvas import INK, MEMBERS


def test_a_table_aligns_numbers_and_separates_thousands() -> None:
    shown = table([{"layers": "one", "peak": 2_244_768, "share": 0.5}, {"layers": "all", "peak": 40, "share": 1 / 3}])
    assert repr(shown).split("\n") == [
        "layers       peak   share",
        "one     2,244,768     0.5",
        "all            40  0.3333",
    ]


def test_fractions_are_shown_like_other_numbers() -> None:
    assert table([{"a": Fraction(65, 32), "b": Fraction(4096)}]).rows == (("2.031", "4,096"),)


def test_rows_with_names_have_them_in_their_first_cell() -> None:
    shown = table({"Adam": {"bytes": 947304}, "SGD": {"bytes": 0, "steps": 3}}, "optimizer")
    assert shown.head == ("optimizer", "bytes", "steps")
    assert shown.rows == (("Adam", "947,304", ""), ("SGD", "0", "3"))
    assert shown.right == [False, True, True]


@pytest.mark.parametrize("cell", ["-1.5", "12.8 MB", "36 %", "1e-05", "below 0.1", "1,024"])
def test_numbers_with_units_are_aligned_to_the_right(cell) -> None:
    assert table([{"a": cell}]).right == [True]


def test_words_and_truths_are_aligned_to_the_left() -> None:
    assert table([{"a": "fits", "b": True, "c": "0 to 4"}]).right == [False] * 3


def test_a_table_is_html_and_text() -> None:
    shown = table([{"<stage>": "a & b", "bytes": 1000}])
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    assert bundle["text/html"] == (
        '<table><tr><th scope="col" style="text-align: left">&lt;stage&gt;</th>'
        '<th scope="col" style="text-align: right">bytes</th></tr>'
        '<tr><th scope="row" style="text-align: left">a &amp; b</th>'
        '<td style="text-align: right">1,000</td></tr></table>'
    )


def test_a_first_column_without_a_name_has_no_empty_header() -> None:
    shown = table({"Adam": {"bytes": 8}}).html
    assert shown.startswith('<table><tr><td style="text-align: left"></td><th scope="col"')


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="table: there is no row"):
        table([])


def test_equal_lines_lie_on_each_other_and_all_can_be_seen() -> None:
    picture = curve({"one process": [3.0, 2.0], "DDP": [3.0, 2.0]})
    assert picture.caption == ("The loss by step, from 1 to 2. one process: from 3 to 2; DDP: from 3 to 2.")
    below, above = (
        f"stroke: {colour}; stroke-width: {width}" for colour, width in ((MEMBERS[1].lower(), 4.5), (INK, 1.5))
    )
    assert picture.svg.index(below) < picture.svg.index(above)


def test_a_curve_says_its_numbers() -> None:
    picture = curve({"ring": [0.46, 37.9], "tree": [0.15, 40.1]}, [1, 1000], xlabel="MB", ylabel="time in ms", log="xy")
    assert picture.text.split("\n") == ["MB: 1, 1000", "ring: 0.46, 37.9", "tree: 0.15, 40.1"]
    assert picture.caption.startswith("The time in ms by MB, from 1 to 1000.")
    assert all(f">{tick}<" in picture.svg for tick in ("1", "10", "100", "1000", "time in ms"))


def test_tensors_are_numbers_too() -> None:
    assert curve({"loss": torch.tensor([3.0, 2.0])}, torch.tensor([10, 20])).text == "step: 10, 20\nloss: 3, 2"


@pytest.mark.parametrize("lines", [{}, {"a": []}, {"a": [1.0], "b": [1.0, 2.0]}])
def test_lines_without_a_number_for_each_place_are_refused(lines) -> None:
    with pytest.raises(ValueError, match="Give at least one line, with a number for each place"):
        curve(lines)
