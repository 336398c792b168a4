"""Which line of a stack is the learner's, and which exception is shown."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from course_lib import CourseError
from course_lib.meter import is_learners_file
from course_lib.world import learner_code
from course_lib.world.error_report import ErrorReport


def test_code_that_a_library_executes_is_no_line_of_the_learners() -> None:
    variables = {}
    exec("import sys; frame = sys._getframe()", variables)
    source_line = learner_code.source_line_on(variables["frame"])
    assert (
        source_line is not None
        and source_line.function == "test_code_that_a_library_executes_is_no_line_of_the_learners"
    )


def test_a_course_error_among_the_causes_is_shown_and_a_circle_of_causes_ends() -> None:
    refusal, between, outer = CourseError("refused"), KeyError("between"), RuntimeError("outer")
    between.__cause__, outer.__cause__ = refusal, between
    assert str(ErrorReport.of(outer)) == "CourseError: refused"
    outer.__cause__ = outer
    assert str(ErrorReport.of(outer)) == "RuntimeError: outer"


def test_an_exception_group_is_reported_by_its_first_exception() -> None:
    def fail() -> None:
        raise FileNotFoundError("shard-2.bin")

    try:
        fail()
    except FileNotFoundError as missing:
        inner = ExceptionGroup("readers", [missing, KeyError("step")])
    report = ErrorReport.of(ExceptionGroup("tasks", [inner, inner, ValueError("last")]))
    assert str(report) == (
        "FileNotFoundError: shard-2.bin\n    in ExceptionGroup: tasks (3 sub-exceptions), and 2 more exceptions"
    )
    assert report.source_line is not None and report.source_line.function == "fail"
    assert str(ErrorReport.of(ExceptionGroup("one", [CourseError("refused")]))) == (
        "CourseError: refused\n    in ExceptionGroup: one (1 sub-exception)"
    )


def test_the_notes_of_an_exception_are_shown_below_its_text() -> None:
    error = ValueError("odd")
    error.add_note("in rules.cfg")
    assert str(ErrorReport.of(error)) == "ValueError: odd\n    in rules.cfg"
    error.__notes__ = 3  # type: ignore[assignment]
    assert str(ErrorReport.of(error)) == "ValueError: odd"


def test_the_control_characters_of_an_exception_are_shown_as_escapes() -> None:
    odd = type("Odd\n\x1b[1A", (ValueError,), {})
    report = ErrorReport.of(odd("\x1b[1;31ma\x1b[0m\x00\u2028\u202e\ud800\tb\r\nd\xe9j\xe0\xa0vu"))
    assert str(report) == "Odd\\n\\x1b[1A: a\\x00\\u2028\\u202e\\ud800\tb\n    d\xe9j\xe0\xa0vu"
    assert report.traceback.endswith("a\\x00\\u2028\\u202e\\ud800\tb\nd\xe9j\xe0\xa0vu\n")


def test_the_methods_that_a_dataclass_generates_are_no_line_to_show() -> None:
    @dataclass
    class Made:
        line: learner_code.SourceLine = field(default_factory=learner_code.learner_line)

    made = Made()
    assert made.line.source == "made = Made()"


def test_the_command_that_starts_a_process_is_nobodys_line() -> None:
    variables: dict = {}
    command = threading.Thread(target=exec, args=("import sys; frame = sys._getframe()", variables))
    command.start()
    command.join()
    assert learner_code.source_line_on(variables["frame"]) is None


def test_what_pip_has_put_into_a_folder_is_a_library(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.dist-info").mkdir()
    (tmp_path / "thing-1.0.dist-info" / "RECORD").write_text("thing/__init__.py,sha256=a,1\nsix.py,,\n")
    files = ("thing/inner/a.py", "six.py", "mine.py", "mine/thing/a.py")
    assert [is_learners_file(str(tmp_path / file)) for file in files] == [False, False, True, True]
