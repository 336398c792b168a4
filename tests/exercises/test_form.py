"""The form of a declaration: the stub, edits of the reference, and messages."""

import inspect
import traceback

import pytest

from course_lib import World
from course_lib.exercises import Case, Exercise, get
from course_lib.exercises.form.source import paragraphs, prose


def declared() -> Exercise:
    """An exercise with a reference."""
    exercise = Exercise(
        "sample.total",
        title="Total",
        task="""
            Return the sum of `numbers`,
            0 for an empty list.
            """,
        draw=lambda rng, number: Case(world_size=0, args=lambda rank: ([1, number],), what="2 numbers"),
        hints="What is a sum?",
        explanation="Addition.",
    )
    exercise(total)
    return exercise


def total(numbers: list[int]) -> int:
    """Return the sum of `numbers`."""
    result = 0
    for number in numbers:
        result += number
    return result


def test_the_stub_is_the_references_signature_and_docstring() -> None:
    exercise = declared()

    assert exercise.cell == (
        '@exercise("sample.total")\n'
        "def total(numbers: list[int]) -> int:\n"
        '    """Return the sum of `numbers`."""\n'
        "    raise NotImplementedError"
    )
    assert inspect.getsource(exercise.stub) == exercise.cell.partition("\n")[2] + "\n"
    with pytest.raises(NotImplementedError):
        exercise.stub([])


def test_a_repair_starts_with_a_program_of_its_own() -> None:
    exercise = declared()

    @exercise.start
    def broken(numbers: list[int]) -> int:
        return len(numbers)

    assert exercise.cell.endswith('    """Return the sum of `numbers`."""\n    return len(numbers)')
    assert exercise.stub([5, 5]) == 2
    assert exercise.check(broken).status == "unattempted"


def test_a_repair_starts_with_edits_of_the_reference() -> None:
    exercise = declared()
    exercise.start_edit({"+=": "-="})

    assert '"""\n    result = 0\n    for number in numbers:\n        result -= number\n' in exercise.cell
    assert exercise.stub([5]) == -5


def test_an_edit_is_a_mistake_with_its_source_and_its_message() -> None:
    exercise = declared()
    exercise.edit(
        "squares",
        {"number in": "n in", "result += number": "square = n * n\nif square:\n    result += square"},
        """
        You add the squares,
        where numbers are asked for. Next: add `number`.
        """,
    )
    (mistake,) = exercise.mistakes

    assert mistake.solution([2, 3]) == 13
    lines = "        square = n * n\n        if square:\n            result += square\n"
    assert lines in inspect.getsource(mistake.solution)
    assert mistake.message == "You add the squares, where numbers are asked for. Next: add `number`."
    assert (mistake.sentence, mistake.action) == ("You add the squares, where numbers are asked for.", "add `number`.")
    assert exercise.check(lambda numbers: sum(number**2 for number in numbers)).mistake == "squares"


@pytest.mark.slow
def test_an_edit_travels_to_other_processes_by_itself() -> None:
    exercise = get("ranks.hello")
    mistake = next(mistake for mistake in exercise.mistakes if mistake.id == "counts-from-one")

    assert exercise.check(mistake.solution, World(2, backend="processes")).mistake == "counts-from-one"


def test_an_edit_may_remove_lines() -> None:
    exercise = declared()
    loop = "result = 0\nfor number in numbers:\nresult += number\n"
    exercise.variant_edit("shorter", {loop: "", "return result": "return sum(numbers)"})

    assert exercise.variants["shorter"]()([2, 3]) == 5


def test_an_edit_of_a_last_line_leaves_the_next_line_outside_the_block() -> None:
    exercise = declared()
    exercise.variant_edit("twice", {"result += number\n": "result += number\nresult += number\n"})

    assert exercise.variants["twice"]()([2, 3]) == 10


def test_an_edited_solution_shows_its_line_in_a_traceback() -> None:
    exercise = declared()
    exercise.edit("fails", {"return result": "return result / 0"}, "It divides. Next: leave that out.")

    with pytest.raises(ZeroDivisionError) as caught:
        exercise.mistakes[0].solution([])
    assert "return result / 0" in "".join(traceback.format_tb(caught.tb))


@pytest.mark.parametrize(("old", "count"), [("product", 0), ("result", 3)])
def test_an_edit_that_is_not_found_exactly_once_is_refused(old: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"sample.total, other: '{old}' occurs {count} times"):
        declared().edit("other", {old: "other"}, "It reads others. Next: read numbers.")


def test_an_edit_of_whole_lines_begins_without_their_indentation() -> None:
    with pytest.raises(
        ValueError, match=r"sample.total, other: '    result = 0.*' begins with a blank and ends a line"
    ):
        declared().edit("other", {"    result = 0\n": ""}, "It starts nowhere. Next: start at 0.")


def test_the_docstring_does_not_count_as_a_place() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        declared().edit("other", {"the sum of": "no sum of"}, "It reads others. Next: read numbers.")


def test_a_function_is_a_mistake_with_its_docstring_as_the_message() -> None:
    exercise = declared()

    @exercise.mistake
    def counts_them(numbers: list[int]) -> int:
        """You count the numbers,
        where their sum is asked for. Next: add them."""
        return len(numbers)

    (mistake,) = exercise.mistakes
    assert (mistake.id, mistake.solution) == ("counts-them", counts_them)
    assert mistake.message == "You count the numbers, where their sum is asked for. Next: add them."


def test_a_message_without_a_next_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r'sample.total, subtracts: write "Next:" and one next step'):
        declared().edit("subtracts", {"+=": "-="}, "You subtract.")


def test_prose_has_one_line_for_each_paragraph() -> None:
    text = """
        One
        paragraph, then code:
        ```python
        x = 1

        y = 2
        ```
        - an item
          of a list
        - another

        The
        end.
        """

    assert declared().task == "Return the sum of `numbers`, 0 for an empty list."
    assert prose(text) == (
        "One paragraph, then code:\n```python\nx = 1\n\ny = 2\n```\n- an item\n  of a list\n- another\n\nThe end."
    )
    assert [part[:3] for part in paragraphs(text)] == ["One", "The"]
