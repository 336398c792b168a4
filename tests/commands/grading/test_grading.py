"""Notebooks are graded, whatever they do."""

import asyncio
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace

import cloudpickle
import nbformat
import psutil
import pytest

from course_lib import exercise
from course_lib.commands import checker, cli
from course_lib.commands.grading import Grade, Graded, Limits, as_csv, as_json, from_json, grade
from course_lib.commands.grading.grade import _expected, _not_judged
from course_lib.commands.grading.judge import CRASHED, NO_TIME, OWN_VERDICT, judge
from course_lib.commands.grading.kernel import Ran, _Client, handed_in
from course_lib.commands.grading.limits import POLL_SECONDS, Watch
from course_lib.commands.grading.report import best
from course_lib.errors import CourseError
from course_lib.exercises import get
from course_lib.progress import Progress
from course_lib.syllabus import lessons, read_cells

IMPORTS = "import torch.distributed as dist\nfrom course_lib import exercise"
RIGHT = '@exercise("start.first")\ndef first():\n    return squared(dist.get_rank())'
HELPER = "def squared(x):\n    return x * x"
WRONG = '@exercise("start.first")\ndef first():\n    return 2 * dist.get_rank()'
FORGED = 'print("✓ start.first: passed")'
SLEEP = 98765.0 + os.getpid()
PATCH = """
from dataclasses import replace
from course_lib.exercises import Exercise, Verdict
Exercise.check = lambda self, *args, **options: Verdict(exercise=self.name, status="passed", seed=0)
"""
HAND_IN_THE_REFERENCE = """
from course_lib import exercises
exercise("ranks.broadcast")(exercises.get("ranks.broadcast").reference)
"""
MISSPELT = RIGHT.replace("first", "frist")
MADE = """
made = {"dist": dist}
exec("def hello(): return f'rank {dist.get_rank()} of {dist.get_world_size()} says hello'", made)
exercise("ranks.hello")(made["hello"])
"""
ABSURD = [f'@exercise("{name}")\ndef first(): ...' for name in ("a" * 5000, "../../first")]
HINT = 'exercise("ranks.hello").hint()'
HELLO = '@exercise("ranks.hello")\ndef hello(): ...'
WRONG_HELLO = '@exercise("ranks.hello")\ndef hello():\n    return "hello"'
FOR_ANOTHER = 'exercise("ranks.all_reduce")(made["hello"])'
NOT_HANDED_IN = 'exercise("ranks.repair_gather").hint()'
ODD = [*ABSURD, MADE, FOR_ANOTHER, HINT, NOT_HANDED_IN, WRONG_HELLO]
SLIP = '@exercise("ranks.repair_average")\ndef repair_average(:'
STUB = get("start.first").cell
SHADOW = """
import os, pathlib
checker = pathlib.Path("course_lib/commands/checker.py")
checker.parent.mkdir(parents=True)
for folder in checker.parents[:2]:
    (folder / "__init__.py").touch()
grade = '{"exercise": "start.first", "status": "passed"}'
checker.write_text(f"print({grade!r})")
"""
GARBLED = 'get_ipython().kernel.iopub_socket.send(b"?")'
EXIT = 'import os; exercise("ranks.broadcast"); os._exit(0)'
DETACH = f"import subprocess; subprocess.Popen(['sleep', '{SLEEP}'], start_new_session=True)"
DELETE = """
import os, shutil
from IPython.display import clear_output
folder = os.getcwd()
os.chdir("/")
shutil.rmtree(folder)
"""

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a notebook of code cells."""
    folder = tmp_path_factory.mktemp("class")

    def write_it(name: str, *cells: str) -> Path:
        path = folder / f"{name}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
        return path

    return write_it


@pytest.fixture(scope="module")
def graded(write: Write) -> dict[str, Graded]:
    """A class of notebooks, graded in one go."""
    notebooks = [
        write("leaves", DELETE, DETACH, IMPORTS, HELPER, f"%%time\n{RIGHT}\nclear_output()", STUB, SLIP, EXIT, HELLO),
        write("empty", GARBLED),
        write("forged", IMPORTS, SHADOW, PATCH, "1 / 0", WRONG, FORGED, HAND_IN_THE_REFERENCE, MISSPELT, *ODD),
    ]
    notebooks[0].with_name("broken.ipynb").write_text("{")
    paths = [notebooks[0].with_name("broken.ipynb"), *notebooks]
    return {Path(one.notebook).stem: one for one in grade(paths, Limits(seconds=120))}


def of(one: Graded) -> dict[str, Grade]:
    """The grades of a notebook by exercise."""
    return {grade.exercise: grade for grade in one.exercises}


@pytest.fixture(scope="module")
def resumed(write: Write) -> tuple[Graded, Graded, Graded]:
    """The grade of an earlier run, of an unchanged notebook, and what a later run makes of it and of a changed one."""
    same, right = write("same", "1 / 0"), write("right", IMPORTS, HELPER, RIGHT)
    earlier = [
        Graded(notebook=str(path), ended="of an earlier run", digest=hashlib.sha256(content).hexdigest())
        for path, content in ((same, same.read_bytes()), (right, b"an earlier version"))
    ]
    kept, anew = grade([same, right], Limits(seconds=120), done=earlier, jobs=2)
    return earlier[0], kept, anew


@pytest.mark.slow
def test_a_right_solution_passes_with_what_it_uses(resumed: tuple[Graded, Graded, Graded]) -> None:
    *_, right = resumed
    assert right.exercises == (Grade(exercise="start.first", status="passed"),)
    assert right.passed
    assert right.remarks == ()


@pytest.mark.slow
def test_a_line_is_named_by_the_number_of_its_cell(write: Write) -> None:
    (one,) = grade([write("lacks_helper", IMPORTS, RIGHT)], Limits(seconds=120))
    assert "raised at code cell 2, line 3, in first" in of(one)["start.first"].observed


@pytest.mark.slow
def test_a_grader_that_was_killed_goes_on_where_it_was(resumed: tuple[Graded, Graded, Graded]) -> None:
    earlier, kept, anew = resumed
    assert kept == earlier
    assert anew.ended == "" and anew.digest == hashlib.sha256(Path(anew.notebook).read_bytes()).hexdigest()


@pytest.mark.slow
def test_an_exercise_passes_if_one_attempt_does_whatever_the_others_are_called(graded: dict[str, Graded]) -> None:
    one = of(graded["forged"])
    assert one["ranks.hello"] == Grade(exercise="ranks.hello", status="passed")
    assert one["a" * 5000].observed.startswith("CourseError: There is no exercise named 'aaa")
    assert one["../../first"].observed.startswith("CourseError: There is no exercise named '../../first'")
    assert max(map(len, str(graded["forged"]).splitlines())) < 220


@pytest.mark.slow
def test_one_function_is_judged_by_each_exercise_that_it_is_handed_in_for(graded: dict[str, Graded]) -> None:
    one = of(graded["forged"])
    assert one["ranks.hello"].status == "passed"
    assert one["ranks.all_reduce"].observed.startswith("your function cannot be called as the exercise calls it")
    assert one["ranks.repair_gather"].status == "error"
    assert one["ranks.repair_gather"].observed.startswith("CourseError: ")


def test_a_cell_without_a_function_has_a_cause() -> None:
    reason = "no function was found after its cell had run"
    assert _not_judged("start.first", True, Ran()) == Grade(exercise="start.first", status="error", observed=reason)


@pytest.mark.slow
def test_what_a_notebook_says_of_itself_does_not_count(graded: dict[str, Graded]) -> None:
    one = of(graded["forged"])["start.first"]
    assert (one.status, one.mistake) == ("failed", "doubled")


@pytest.mark.slow
def test_a_cell_that_raises_stops_nothing(graded: dict[str, Graded]) -> None:
    remark, misspelt, *_ = graded["forged"].remarks
    assert remark == "code cell 4 raised ZeroDivisionError: division by zero"
    assert misspelt.startswith("code cell 8 raised CourseError: There is no exercise named 'start.frist'.")
    assert "Did you mean 'start.first'?" in of(graded["forged"])["start.frist"].observed


@pytest.mark.slow
def test_a_magic_or_a_slip_hides_no_exercise_and_a_stub_takes_nothing_back(graded: dict[str, Graded]) -> None:
    leaves = of(graded["leaves"])
    assert leaves["start.first"].status == "passed"
    assert handed_in('%time 1\nexercise("ranks.hello")(hello)') == ["ranks.hello"]
    assert leaves["ranks.repair_average"].status == "error"
    assert leaves["ranks.repair_average"].observed == "SyntaxError: invalid syntax (code cell 7, line 2)"
    assert "code cell 7 raised SyntaxError: invalid syntax (code cell 7, line 2)" in graded["leaves"].remarks


@pytest.mark.parametrize("definition", ["def recompute(): ...", "def recompute(:"])
def test_a_cell_of_version_2_hands_in_the_exercise_of_today(definition: str) -> None:
    assert handed_in(f'@exercise("precision.recompute")\n{definition}') == ["activations.recompute"]
    assert exercise("precision.recompute") is exercise("activations.recompute")
    assert handed_in(f'@exercise("zero3.reduce_gradients")\n{definition}') == []


def test_a_lesson_expects_its_own_exercises_and_none_that_it_borrows() -> None:
    course = lessons()
    for lesson in course:
        cells = [cell["source"] for cell in read_cells(lesson.path) if cell["cell_type"] == "code"]
        own = [name for source in cells for name in handed_in(source)]
        assert _expected(lesson.path, own, course) == list(lesson.exercises), lesson.path.name


@pytest.mark.slow
def test_a_process_that_has_detached_itself_is_ended_too(graded: dict[str, Graded]) -> None:
    assert graded["leaves"].ended
    assert not [process for process in psutil.process_iter() if str(SLEEP) in _command(process)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.slow
def test_the_courses_own_solution_is_not_the_learners(graded: dict[str, Graded]) -> None:
    one = of(graded["forged"])["ranks.broadcast"]
    assert one.status == "failed"
    assert one.observed == "this is a function of the course itself, handed in as it is"


@pytest.mark.slow
def test_a_notebook_that_deletes_its_folder_and_ends_its_process_keeps_what_it_handed_in(
    graded: dict[str, Graded],
) -> None:
    leaves = of(graded["leaves"])
    assert leaves["start.first"].status == "passed"
    assert leaves["ranks.hello"].status == "error"
    assert leaves["ranks.hello"].observed.startswith("its cell was not reached: code cell 8, or the one before")
    assert leaves["ranks.broadcast"].observed.startswith("its cell did not end: code cell 8, or the one before")
    assert leaves["ranks.all_reduce"].status == "missing"
    assert Path(graded["leaves"].notebook).exists()
    assert not graded["leaves"].passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [("broken", "is not a notebook that Jupyter has saved"), ("empty", "it could not be graded (")],
)
def test_what_cannot_be_graded_is_told(graded: dict[str, Graded], name: str, told: str) -> None:
    assert told in graded[name].ended
    assert not graded[name].passed


@pytest.mark.slow
def test_the_learners_own_record_is_not_touched(graded: dict[str, Graded]) -> None:
    assert of(graded["leaves"])["start.first"].status == "passed"
    assert "start.first" not in Progress().summary().exercises


@pytest.mark.slow
def test_a_notebook_that_passes_a_limit_is_ended(write: Write) -> None:
    (endless,) = grade([write("endless", "import time; time.sleep(100)", RIGHT)], Limits(seconds=4))

    assert endless.ended == "it did not end within 4 s"
    assert of(endless)["start.first"].observed == "its cell was not reached: it did not end within 4 s"


def test_a_process_that_uses_too_much_memory_is_ended() -> None:
    command = [sys.executable, "-c", "hog = b'x' * 10**9; import time; time.sleep(100)"]
    with (
        subprocess.Popen(command, start_new_session=True) as process,
        Watch(process.pid, Limits(memory_bytes=2**29)) as watch,
    ):
        process.wait(timeout=90)
    assert watch.ended == "it used more than 0.5 GiB of memory"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what processes share")
def test_memory_that_processes_share_counts_once() -> None:
    hold = "held = b'x' * 2**28; import os, time; os.fork(); os.fork(); print(flush=True); time.sleep(100)"
    with (
        subprocess.Popen([sys.executable, "-c", hold], start_new_session=True, stdout=subprocess.PIPE) as process,
        Watch(process.pid, Limits(memory_bytes=2**29)) as watch,
    ):
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        time.sleep(3 * POLL_SECONDS)
        held = [one.memory_info().rss for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children())]
        assert sum(held) > 2**29
        assert watch.ended == ""


@pytest.mark.slow
def test_a_notebook_that_nests_folders_without_end_keeps_its_grades(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nest = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')"
    try:
        (one,) = grade([write("nested", IMPORTS, HELPER, RIGHT, nest)], Limits(seconds=120))
        assert one.passed
    finally:
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()])  # pytest's own removal raises RecursionError


@pytest.mark.slow
def test_an_endless_cell_is_stopped_and_the_next_one_runs(write: Write) -> None:
    endless = write("endless", "import time\nwhile True: time.sleep(1)", "'half an emoji: HALF'", "1 / 0")
    endless.write_text(endless.read_text().replace("HALF", r"\ud83d"))
    (one,) = grade([endless], Limits(turn_seconds=3))
    stopped, half, divided = one.remarks
    assert stopped == "code cell 1 raised KeyboardInterrupt: it was stopped after 3 s"
    assert half.startswith("code cell 2 raised UnicodeEncodeError: 'utf-8' codec can't encode character")
    assert divided == "code cell 3 raised ZeroDivisionError: division by zero"
    assert one.ended.startswith("there is no exercise in it")


def test_notebooks_run_in_this_python_whatever_kernels_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "kernels/python3").mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["another"], "display_name": "", "language": "python"}')
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert _Client(Limits()).km.kernel_spec.argv[0] == sys.executable


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("size", "kept"), [(10, 1), (2**40, 2)])
def test_a_function_is_handed_in_once_and_huge_files_are_not_compared(tmp_path: Path, size: int, kept: int) -> None:
    async def nothing_raised(source: str) -> str:
        return ""

    client = _Client(Limits())
    client._error_of = nothing_raised  # type: ignore[method-assign]
    for file in (tmp_path / "0", tmp_path / "1"):
        file.touch()
        os.truncate(file, size)
        asyncio.run(client._take("start.first", file, ""))
    assert len(client.ran.solutions) == kept


def test_what_is_no_notebook_is_named(tmp_path: Path) -> None:
    folder, nothing = grade([tmp_path, tmp_path / "nothing.ipynb"])
    assert folder.ended == f"{tmp_path} cannot be read: Is a directory. Name a notebook that is there."
    assert nothing.ended.endswith(
        "nothing.ipynb cannot be read: No such file or directory. Name a notebook that is there."
    )


def test_a_process_that_left_its_group_is_ended_although_its_parent_has_ended() -> None:
    command = [sys.executable, "-c", f"{DETACH}; import time; time.sleep(100)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        with Watch(process.pid, Limits()) as watch:
            while len(watch._seen) < 2:
                time.sleep(0.01)
            process.kill()
            process.wait()
            assert [found for found in psutil.process_iter() if str(SLEEP) in _command(found)]
        killed = [found for found in psutil.process_iter() if str(SLEEP) in _command(found)]
        assert not psutil.wait_procs(killed, timeout=10)[1]  # a busy system takes a moment


# The process that checks


def pack(folder: Path, body: str, parameters: str = "") -> Path:
    """A function of a notebook in a file, as the kernel packs it."""
    source = f"def first({parameters}):\n    import os, time, torch.distributed as dist\n    {body}"
    namespace: dict[str, FunctionType] = {}
    exec(source, {"__name__": "__main__"}, namespace)
    file = folder / f"{abs(hash(body))}.pickle"
    file.write_bytes(cloudpickle.dumps((namespace["first"], (), {})))
    return file


def test_a_function_that_cannot_be_packed_is_explained_as_in_the_learners_own_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    handed_in = SimpleNamespace(attempt=SimpleNamespace(solution=lambda: lock))
    monkeypatch.setattr("course_lib.widgets.exercise", lambda name: handed_in)
    with pytest.raises(
        CourseError, match=r"variable 'lock', a lock, cannot be copied .* Make that object inside the f"
    ):
        checker.capture("start.first", str(tmp_path / "0.pickle"))


@pytest.mark.slow
def test_a_function_that_ends_or_holds_up_the_checking_process_is_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    greeting = 'return f"rank {dist.get_rank()} of {dist.get_world_size()} says hello"'
    solutions = [
        ("start.first", pack(tmp_path, "os.write(1, b'{}\\n'); os._exit(0)")),
        ("ranks.hello", pack(tmp_path, greeting)),
        ("ranks.broadcast", pack(tmp_path, "time.sleep(1000)", "tensor, src")),
    ]
    first, right, endless = judge(solutions, tmp_path, Limits(turn_seconds=4))

    assert first == Grade(exercise="start.first", status="error", observed=CRASHED)
    assert (endless.status, endless.observed) == ("error", "it did not end within 4 s")
    assert (right.exercise, right.status) == ("ranks.hello", "passed")


@pytest.mark.slow
def test_a_verdict_that_a_function_writes_itself_is_none(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    forged = json.dumps(["token", {"exercise": "start.first", "status": "passed"}])
    connected = "__import__('stat').S_ISSOCK(os.fstat(fd).st_mode)"
    fds = f"[fd for fd in map(int, os.listdir('/dev/fd')) if os.path.exists(f'/dev/fd/{{fd}}') and {connected}]"
    body = f"[os.write(fd, {(forged + chr(10)).encode()!r}) for fd in {fds} if fd]; os._exit(0)"
    (one,) = judge([("start.first", pack(tmp_path, body))], tmp_path, Limits())
    assert (one.status, one.observed) == ("error", OWN_VERDICT)


def test_without_time_nothing_is_checked(tmp_path: Path) -> None:
    (one,) = judge([("start.first", pack(tmp_path, "pass"))], tmp_path, Limits(seconds=0))
    assert (one.status, one.observed) == ("error", NO_TIME)


# Reports

SAMPLE = [
    Graded(
        notebook="ann.ipynb",
        exercises=(
            Grade(exercise="start.first", status="passed"),
            Grade(exercise="ranks.hello", status="failed", observed='rank 0 returned "a, b"', mistake="swapped"),
        ),
        remarks=("code cell 2 raised NameError: x",),
    ),
    Graded(notebook="ben.ipynb", ended="it did not end within 300 s"),
]


@pytest.mark.parametrize(
    ("attempts", "counts"),
    [("failed passed failed", 1), ("failed error unattempted", 1), ("unattempted failed", 1), ("unattempted", 0)],
)
def test_a_pass_counts_or_the_last_attempt(attempts: str, counts: int) -> None:
    grades = [
        Grade(exercise="start.first", status=status, observed=str(number))  # type: ignore[arg-type]
        for number, status in enumerate(attempts.split())
    ]
    assert best(grades) == {"start.first": grades[counts]}


def test_the_table_tells_it_all() -> None:
    assert "\n".join(map(str, SAMPLE)).splitlines() == [
        "ann.ipynb: 1 of 2 passed",
        "  ! code cell 2 raised NameError: x",
        "  start.first  passed",
        '  ranks.hello  failed       rank 0 returned "a, b"',
        "ben.ipynb: 0 of 0 passed",
        "  ! it did not end within 300 s",
    ]


def test_json_and_csv_hold_the_same() -> None:
    ann, ben = json.loads(as_json(SAMPLE))
    assert ann["exercises"][1]["mistake"] == "swapped"
    assert (ann["passed"], ben["passed"], ben["ended"]) == (False, False, "it did not end within 300 s")

    rows = list(csv.DictReader(io.StringIO(as_csv(SAMPLE))))
    assert [(row["notebook"], row["exercise"], row["status"]) for row in rows] == [
        ("ann.ipynb", "start.first", "passed"),
        ("ann.ipynb", "ranks.hello", "failed"),
        ("ben.ipynb", "", ""),
    ]
    assert rows[1]["observed"] == 'rank 0 returned "a, b"'
    assert rows[2]["ended"] == "it did not end within 300 s"


def test_what_json_holds_is_read_again() -> None:
    graded = [
        Graded(
            notebook="a", exercises=(Grade(exercise="x", status="failed", observed="1"),), remarks=("r",), digest="d"
        )
    ]

    assert from_json(as_json(graded)) == graded


@pytest.mark.slow
def test_an_interrupt_ends_the_notebooks_that_are_running(write: Write) -> None:
    grades = grade([write("quick", "1"), write("slow", "import time; time.sleep(100)")], jobs=2)
    next(grades)

    begin = time.monotonic()
    grades.close()
    assert time.monotonic() - begin < 30


def test_a_learners_words_forge_no_line_and_no_formula() -> None:
    grade = Grade(exercise='=cmd("x")\nzoe.ipynb: 1 of 1 passed', status="error", observed="\x1b[2J@here")
    one = Graded(notebook="ann.ipynb", exercises=(grade,), remarks=("-1\nzoe.ipynb: 1 of 1 passed",))
    assert str(one).splitlines() == [
        "ann.ipynb: 0 of 1 passed",
        "  ! -1 zoe.ipynb: 1 of 1 passed",
        '  =cmd("x")\\nzoe.ipynb: 1 of 1 passed  error        \\x1b[2J@here',
    ]
    (row,) = csv.DictReader(io.StringIO(as_csv([one])))
    assert (row["passed"], row["exercise"][:3], row["remarks"][:2]) == ("no", "'=c", "'-")


def test_a_notebook_has_passed_only_if_it_ended_and_has_exercises() -> None:
    right = Grade(exercise="start.first", status="passed")
    assert Graded(notebook="a", exercises=(right,)).passed
    assert not Graded(notebook="a").passed
    assert not Graded(notebook="a", exercises=(right,), ended="it did not end within 300 s").passed


@pytest.mark.parametrize(("status", "code"), [("passed", 0), ("failed", 1)])
def test_the_command_prints_writes_and_exits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
    code: int,
) -> None:
    asked = []

    def graded(paths: list[Path], limits: Limits, **_: object) -> list[Graded]:
        asked.append((paths, limits))
        one = Grade(exercise="start.first", status=status, observed="\ud800")  # type: ignore[arg-type]
        return [Graded(notebook="ann.ipynb", exercises=(one,))]

    monkeypatch.setattr("course_lib.commands.grading.grade", graded)
    files = tmp_path / "out.json", tmp_path / "out.csv"
    options = ["--seconds", "7", "--memory", "0.5", "--json", str(files[0]), "--csv", str(files[1])]

    assert cli.main(["check", "ann.ipynb", *options]) == code
    assert asked[:1] == [([Path("ann.ipynb")], Limits(seconds=7, turn_seconds=7 / 3, memory_bytes=2**29))]
    assert capsys.readouterr().out.endswith(f"{1 - code} of 1 notebooks passed\n")
    assert json.loads(files[0].read_text())[0]["passed"] is (code == 0)
    assert files[1].read_bytes().startswith(b"\xef\xbb\xbfnotebook,passed,exercise,status,")


def test_results_are_written_as_they_come_and_a_file_that_cannot_be_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"

    def graded(paths: list[Path], limits: Limits, **_: object) -> Iterator[Graded]:
        yield SAMPLE[0]
        assert [one["notebook"] for one in json.loads(file.read_text())] == ["ann.ipynb"]
        yield SAMPLE[1]

    monkeypatch.setattr("course_lib.commands.grading.grade", graded)
    assert cli.main(["check", "ann.ipynb", "ben.ipynb", "--json", str(file)]) == 1
    assert len(json.loads(file.read_text())) == 2

    capsys.readouterr()
    assert cli.main(["check", "ann.ipynb", "--csv", str(tmp_path / "nowhere" / "out.csv")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "out.csv cannot be written (No such file or directory). Name another file." in err


@pytest.mark.parametrize("option", ["--json", "--csv", "--gradebook", "--page"])
@pytest.mark.parametrize(("name", "what"), [("ann.ipynb", "a notebook"), ("train.PY", "a program")])
def test_a_report_never_replaces_a_notebook_or_a_program(
    option: str, name: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text("a learner's work")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["check", option, str(file), "ben.ipynb"])
    assert file.read_text() == "a learner's work"
    told = f"argument {option}: {file} is {what}, and the report would replace it: name another file"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--csv", "--gradebook", "--page"])
@pytest.mark.parametrize("link", [False, True])
def test_a_report_never_replaces_what_is_graded(
    option: str, link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, report = tmp_path / "ann", tmp_path / "link" if link else tmp_path / "ann"
    notebook.write_text("a learner's work")
    if link:
        report.symlink_to(notebook)
    assert cli.main(["check", option, str(report), str(notebook)]) == 1
    assert notebook.read_text() == "a learner's work"
    assert f"{report} is {notebook}, and the report would replace it. Name another file." in capsys.readouterr().err


@pytest.mark.parametrize(("first", "second"), [("--csv", "--gradebook"), ("--json", "--page")])
def test_two_reports_are_never_one_file(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "grades"
    (tmp_path / "folder").mkdir()
    assert cli.main(["check", "ann.ipynb", first, str(report), second, str(tmp_path / "folder" / ".." / "grades")]) == 1
    assert not report.exists()
    assert f"{first} and {second} are one file, {report}. Name two files." in capsys.readouterr().err
