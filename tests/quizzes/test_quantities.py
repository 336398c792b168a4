"""Quantities: what a learner may write, and what is told to who writes something else."""

from fractions import Fraction

import pytest

from course_lib.quizzes.quantities import Unreadable, factor, mistaken_byte_unit, read, write


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("38.5 GB", "GB", 38_500_000_000),
        ("38.5", "GB", 38_500_000_000),
        ("38.5G", "GB", 38_500_000_000),
        ("  38.5gb ", "GB", 38_500_000_000),
        ("35 GiB", "GB", 35 * 2**30),
        ("1,024 KiB", "MiB", 2**20),
        ("16", "bytes", 16),
        ("16 B", "bytes", 16),
        ("12.5", "kB", 12_500),
        ("12.5 KB", "kB", 12_500),
        ("12.5k", "kB", 12_500),
        ("12.5 KiB", "kB", 12_800),
        ("1/4 GB", "GB", 250_000_000),
        ("7B", "", 7_000_000_000),
        ("7 B elements", "elements", 7_000_000_000),
        ("7 billion", "", 7_000_000_000),
        ("3 ranks", "ranks", 3),
        ("500K", "", 500_000),
        ("2M", "", 2_000_000),
        ("2G", "", 2_000_000_000),
        ("1.5T", "", 1_500_000_000_000),
        ("2e9", "", 2_000_000_000),
        ("1E-1", "", Fraction(1, 10)),
        ("1/4", "", Fraction(1, 4)),
        ("1 / 3", "", Fraction(1, 3)),
        ("25 %", "", Fraction(1, 4)),
        ("1,234,567.5", "", Fraction(2469135, 2)),
        (".5", "", Fraction(1, 2)),
        ("-3", "", -3),
        ("87.5 %", "%", Fraction(7, 8)),
        ("87.5", "%", Fraction(7, 8)),
        ("87.5 percent", "%", Fraction(7, 8)),
        ("7/8", "%", Fraction(7, 8)),
        ("0.5 %", "%", Fraction(1, 200)),
        ("1.5 s", "ms", 1500),
        ("5 µs", "ms", Fraction(1, 200)),
        ("5 ms", "seconds", Fraction(1, 200)),
        ("1.5 sec", "ms", 1500),
        ("5 milliseconds", "msec", 5),
        ("2 megabytes", "kB", 2 * 10**6),
        ("50 GB/s", "GB/s", 50),
        ("3x", "", 3),
        ("3 times", "", 3),
        ("1 rank", "ranks", 1),
        ("−1.75", "", Fraction(-7, 4)),
        ("14 · 10⁹ bytes", "GB", 14 * 10**9),
        ("1.5 x 10^-3", "", Fraction(3, 2000)),
        ("2**-8", "", Fraction(1, 256)),
        ("1/2⁸", "", Fraction(1, 256)),
        ("2^20 B", "MiB", 2**20),
        ("14 000 MB", "GB", 14 * 10**9),
    ],
)
def test_a_quantity_is_read_exactly(text: str, unit: str, value: Fraction | int) -> None:
    assert read(text, unit).value == value


@pytest.mark.parametrize(
    ("text", "unit", "reading"),
    [
        ("38.5", "GB", "38.5 GB"),
        ("38.5 GB", "GiB", "38.5 GB, which is 35.8559 GiB"),
        ("7/8", "%", "7/8, which is 87.5 %"),
        ("7B", "elements", "7B, which is 7,000,000,000 elements"),
        ("1000.5", "", "1,000.5"),
    ],
)
def test_a_reading_says_what_was_understood(text: str, unit: str, reading: str) -> None:
    assert read(text, unit).text == reading


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("", "GB", "Type a number first."),
        ("7 GB", "elements", "`GB` does not fit this question. Give the answer in elements."),
        ("12 %", "GB", "`%` does not fit this question. Give the answer in GB."),
        ("7 GB", "", "`GB` does not fit this question. Give a plain number."),
        ("5 m", "ms", "`m` does not fit this question. Give the answer in ms."),
        ("50 Gb/s", "GB/s", "`Gb/s` does not fit this question. Give the answer in GB/s."),
        ("50 GB/s", "GB", "`GB/s` does not fit this question. Give the answer in GB."),
        (
            "0.875",
            "%",
            "`0.875` could be a share of one or a percentage. Write 87.5 % or 0.875 %.",
        ),
        (
            "1,5",
            "",
            "`1,5` cannot be read as a number. Write it like 38.5, 7B, 2e9, 1/4 or 1,000 "
            "(the comma separates thousands), with or without the unit.",
        ),
    ],
)
def test_what_cannot_be_read_is_told(text: str, unit: str, message: str) -> None:
    with pytest.raises(Unreadable) as told:
        read(text, unit)
    assert str(told.value) == message


@pytest.mark.parametrize(
    "text",
    [
        *("lots", "inf", "nan", "1,0000", "1 0000", "1.2.3", ".", "/4", "1/", "1/0"),
        *("2*7e9", "1e999", "9" * 41, "999^99", "1/2^-1", "<b>"),
    ],
)
def test_no_text_is_read_by_guessing(text: str) -> None:
    with pytest.raises(Unreadable, match="cannot be read as a number"):
        read(text, "")


def test_writing_keeps_what_a_person_needs() -> None:
    assert write(38.5e9, "GB") == "38.5 GB"
    assert write(2**30, "GiB") == "1 GiB"
    assert write(Fraction(7, 8), "%") == "87.5 %"
    assert write(7_500_000_000, "elements") == "7,500,000,000 elements"
    assert write(1, "ranks") == "1 rank" and write(1, "ms") == "1 ms"
    assert write(10**20, "") == "1e+20"
    assert write(16_384_100, "MB") == "16.3841 MB"
    assert write(16_384_100, "MB", rounded=True) == "16.4 MB"
    assert write(16_384_100, "kB", rounded=True) == "16,384 kB"


def test_units_know_their_size_and_the_unit_they_are_mistaken_for() -> None:
    assert (factor("GB"), factor("GiB"), factor("%"), factor("ranks")) == (10**9, 2**30, Fraction(1, 100), 1)
    assert (factor("kB"), factor("KB"), factor("KiB")) == (1000, 1000, 1024)
    assert (mistaken_byte_unit("GB"), mistaken_byte_unit("KiB")) == ("GiB", "kB")
    assert [mistaken_byte_unit(unit) for unit in ("B", "bytes", "%", "elements", "")] == [None] * 5
