"""What the learner has done is stored, and survives kills, other kernels, full disks and damaged files."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from course_lib.exercises.registry import MOVED
from course_lib.progress import Attempt, ExerciseProgress, Progress, store
from course_lib.quizzes import Answer

KILLER = Path(__file__).with_name("progress_killer.py")
NOBODY = 65534
MEASURES = {"held_bytes": 1, "peak_bytes": 2, "sent_bytes": 3, "seconds": 0.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "progress.sqlite3"


def solve(progress: Progress, exercise: str, source: str = "def f(): ...", status: str = "passed") -> Attempt:
    attempt = progress.begin_attempt(exercise, source)
    progress.finish_attempt(attempt, status, [])
    return attempt


def answer(progress: Progress, quiz: str, question: str, **about: Any) -> None:
    given = {"attempt": 0, "given": "7", "reading": "7 bytes"}
    progress.answer(Answer(quiz=quiz, question=question, **given | about))


# What is stored


def test_an_attempt_is_on_the_disk_before_its_check_runs(path: Path) -> None:
    begun = Progress(path).begin_attempt("zero1.step", "def step(): crash()")
    assert Progress(path).last_attempt("zero1.step") == begun
    assert (begun.source, begun.status, begun.findings) == ("def step(): crash()", None, None)


def test_the_first_verdict_of_an_attempt_stays(path: Path) -> None:
    progress = Progress(path)
    attempt = progress.begin_attempt("zero1.step", "def step(): ...")
    progress.finish_attempt(attempt, "failed", [{"rank": 2}])
    progress.finish_attempt(attempt, "passed", [])
    last = Progress(path).last_attempt("zero1.step")
    assert last is not None
    assert (last.status, last.findings) == ("failed", [{"rank": 2}])


def test_the_last_attempt_is_the_newest_of_its_exercise(path: Path) -> None:
    progress = Progress(path)
    assert progress.last_attempt("zero1.step") is None
    for exercise, source in [("zero1.step", "old"), ("zero1.step", "new"), ("zero1.hook", "other")]:
        progress.begin_attempt(exercise, source)
    last = progress.last_attempt("zero1.step")
    assert last is not None and last.source == "new"


def test_the_latest_is_the_last_stored_also_after_a_clock_that_was_ahead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(path)
    hours = iter(range(9, 0, -1))
    monkeypatch.setattr("time.time_ns", lambda: next(hours) * 3600 * 10**9)
    solve(progress, "zero1.step", "ahead", status="passed")
    solve(progress, "zero1.step", "right", status="failed")
    for correct in (False, True):
        answer(progress, "zero1", "bytes", correct=correct)
    for peak in (992, 656):
        progress.add_score("ZeRO-1", {**MEASURES, "peak_bytes": peak})

    last = progress.last_attempt("zero1.step")
    assert last is not None and last.source == "right"
    assert progress.summary().exercises["zero1.step"].last_status == "failed"
    assert progress.first_answers("zero1") == {"bytes": False}
    assert progress.scores()["ZeRO-1"]["peak_bytes"] == 656


def test_hints_taken_are_remembered_once(path: Path) -> None:
    for level in (1, 0, 1):
        Progress(path).hint_taken("zero1.step", level)
    assert Progress(path).hints("zero1.step") == [0, 1]
    assert Progress(path).hints("zero1.hook") == []


def test_the_first_answer_to_a_question_is_remembered(path: Path) -> None:
    progress = Progress(path)
    answer(progress, "zero1", "bytes", correct=False)
    answer(progress, "zero1", "volume", correct=True)
    answer(progress, "zero1", "bytes", correct=True, attempt=1)
    assert [(given.question, given.attempt, given.reading, given.correct) for given in progress.answers("zero1")] == [
        ("bytes", 0, "7 bytes", False),
        ("volume", 0, "7 bytes", True),
        ("bytes", 1, "7 bytes", True),
    ]
    assert progress.first_answers("zero1") == {"bytes": False, "volume": True}
    assert progress.first_answers("zero2") == {}


def test_a_prediction_is_locked(path: Path) -> None:
    progress = Progress(path)
    assert progress.prediction("zero1.peak") is None
    assert progress.predict("zero1.peak", 992) == 992
    assert progress.predict("zero1.peak", 1361) == 992
    assert Progress(path).prediction("zero1.peak") == 992


def test_the_scoreboard_has_the_latest_measures_in_the_order_of_the_first(path: Path) -> None:
    progress = Progress(path)
    first, second, third = ({**MEASURES, "peak_bytes": peak} for peak in (992, 656, 335))
    progress.add_score("data parallel", first)
    progress.add_score("ZeRO-1", second)
    progress.add_score("data parallel", third)
    assert list(Progress(path).scores().items()) == [("data parallel", third), ("ZeRO-1", second)]


def test_the_summary_tells_what_is_solved(path: Path) -> None:
    progress = Progress(path)
    solve(progress, "zero1.partition")
    solve(progress, "zero1.partition", status="failed")
    progress.hint_taken("zero1.partition", 0)
    progress.begin_attempt("zero1.step", "def step(): crash()")
    answer(progress, "zero1", "bytes", correct=True)
    answer(progress, "zero1", "volume", correct=False)
    answer(progress, "zero1", "bytes", correct=False)
    answer(progress, "zero2", "volume", correct=False)

    summary = progress.summary()
    assert summary.exercises == {
        "zero1.partition": ExerciseProgress(attempts=2, passed=True, last_status="failed", hints=1),
        "zero1.step": ExerciseProgress(attempts=1),
    }
    assert summary.quizzes == {"zero1": {"bytes"}, "zero2": set()}


# Where it is stored


def test_the_file_is_in_course_home_and_created_by_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "it's a home with Ψ, ? and #"
    monkeypatch.setenv("COURSE_HOME", str(home))
    progress = Progress()
    assert not home.exists()
    progress.hint_taken("zero1.step", 0)
    assert progress.path == home / "progress.sqlite3"
    assert [file.name for file in home.iterdir()] == ["progress.sqlite3"]
    assert not progress.notice


def test_the_file_is_in_the_data_folder_without_course_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_HOME", raising=False)
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name, appauthor: f"/data/{name}")
    assert Progress().path == Path("/data/sharded/progress.sqlite3")


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    extra = 3
    assert Progress(path)._store.use(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == extra


def test_others_on_this_machine_cannot_read_the_file(path: Path) -> None:
    path.parent.mkdir(mode=0o755)  # a COURSE_HOME that was there before
    path.write_bytes(b"damaged\n" * 1000)
    Progress(path).summary()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# Several at once, and killed


@pytest.mark.parametrize("file", ["progress.sqlite3", "file/progress.sqlite3"], ids=["on disk", "in memory"])
def test_threads_may_share_one_progress(tmp_path: Path, file: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    progress = Progress(tmp_path / file)
    threads = [threading.Thread(target=solve, args=(progress, f"e{n}")) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.summary().exercises.keys() == {f"e{n}" for n in range(16)}
    assert (progress.notice == "") == (file == "progress.sqlite3")


def run_killer(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, KILLER, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_kernels_may_write_at_once(path: Path) -> None:
    kernels = [run_killer("write", path, 25) for _ in range(4)]
    for kernel in kernels:
        said, _ = kernel.communicate(timeout=60)
        assert json.loads(said) == {"notice": ""}
    assert {done.attempts for done in Progress(path).summary().exercises.values()} == {4}
    assert len(Progress(path).summary().exercises) == 25


@pytest.mark.slow
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    kills = int(os.environ.get("ENDURANCE", "20"))
    killer = run_killer("kill", tmp_path, kills, 0)
    said, _ = killer.communicate(timeout=280)
    report = json.loads(said)
    assert report["lost"] == 0
    assert report["said"] > kills


def test_a_kill_inside_a_transaction_undoes_it(path: Path) -> None:
    solve(Progress(path), "zero1.step")
    before = path.read_bytes()
    killer = run_killer("stall", path)
    assert killer.stdout is not None and killer.stdout.readline() == "changed\n"
    killer.kill()
    killer.communicate()
    assert path.read_bytes() != before
    assert Path(f"{path}-journal").stat().st_size > 0

    progress = Progress(path)
    assert progress.summary().exercises.keys() == {"zero1.step"}
    assert not progress.notice
    assert path.read_bytes() == before


# A disk that cannot be written


@contextmanager
def small_disk(file: Path) -> Iterator[None]:
    """SQLite itself says that the disk is full: the file may not grow."""
    pages = file.stat().st_size // 4096
    connect = sqlite3.connect

    def connect_small(*args: object, **options: object) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]
        if args[0] == file:
            db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_small)
        yield


@contextmanager
def small_files(file: Path) -> Iterator[None]:
    """The system refuses to write beyond the file's size, to anyone."""
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def read_only_folder(file: Path) -> Iterator[None]:
    """Root may write anywhere, so a root works as nobody meanwhile."""
    user = os.geteuid()
    file.chmod(0o444)
    file.parent.chmod(0o555)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        file.parent.chmod(0o755)
        file.chmod(0o644)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """A process that was stopped in the middle of its transaction."""
    with closing(sqlite3.connect(file)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "BUSY_SECONDS", 0.05)
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A path that other users reach too, which pytest's own folders are not for."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "progress.sqlite3"


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (small_disk, "database or disk is full"),
        (small_files, "disk I/O error"),
        (read_only_folder, "attempt to write a readonly database"),
        (locked, "database is locked"),
    ],
)
def test_what_cannot_be_stored_waits_in_memory(
    open_path: Path, trouble: Callable[[Path], AbstractContextManager[None]], reason: str
) -> None:
    progress = Progress(open_path)
    solve(progress, "zero1.partition")
    before = open_path.read_bytes()
    with trouble(open_path):
        attempt = progress.begin_attempt("zero1.step", "x" * 100_000)
        assert progress.notice.startswith(f"Progress cannot be stored in {open_path} ({reason}).")
        progress.finish_attempt(attempt, "passed", [])
        assert {name: done.passed for name, done in progress.summary().exercises.items()} == {
            "zero1.partition": True,
            "zero1.step": True,
        }
    assert open_path.read_bytes() == before

    progress.hint_taken("zero1.step", 0)  # the trouble is over: all of it moves into the file
    assert not progress.notice
    assert Progress(open_path).summary() == progress.summary()
    assert Progress(open_path).summary().exercises["zero1.step"] == ExerciseProgress(
        attempts=1, passed=True, last_status="passed", hints=1
    )


def test_a_folder_that_cannot_exist_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    progress = Progress(tmp_path / "file" / "progress.sqlite3")
    attempt = solve(progress, "zero1.step")
    last = progress.last_attempt("zero1.step")
    assert last is not None and last.id == attempt.id
    assert "COURSE_HOME" in progress.notice


# A file that cannot be used


def garbage(data: bytes) -> bytes:
    return b"not a database at all\n" * 1000


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def lost_page(data: bytes) -> bytes:
    return data[:8192] + bytes(4096) + data[12288:]


def lost_schema(data: bytes) -> bytes:
    return data[:100] + b"\xff" * 300 + data[400:]


def bad_text(data: bytes) -> bytes:
    """SQLite quotes the damaged text in its message, and it is not UTF-8."""
    return data.replace(b"CREATE TABLE hints", b"CREATE \xc0ABLE hints")


def bad_json(data: bytes) -> bytes:
    """SQLite finds nothing wrong."""
    return data.replace(b'{"held_bytes":', b'{"held_bytes"?')


def bad_name(data: bytes) -> bytes:
    """SQLite finds nothing wrong. Python cannot decode the text."""
    return data.replace(b"ZeRO-1", b"ZeRO-\xff")


def edited(statement: str) -> Callable[[bytes], bytes]:
    """Damage that is correct SQL."""

    def damage(data: bytes) -> bytes:
        with closing(sqlite3.connect(":memory:")) as db:
            db.deserialize(data)
            db.execute(statement)
            db.commit()
            return db.serialize()

    damage.__name__ = statement
    return damage


def kept_aside(path: Path) -> list[Path]:
    """Return the files that were renamed because they could not be used."""
    return sorted(path.parent.glob(f"{path.name}.*[0-9]"))


@pytest.mark.parametrize(
    "damage",
    [
        garbage, half, lost_page, lost_schema, bad_text, bad_json, bad_name,
        *(edited(f"PRAGMA user_version = {version}") for version in (0, 2, -1, -3)),
        edited("DROP TABLE attempts"), edited("DROP TABLE imported"),
        edited("ALTER TABLE scores RENAME COLUMN value TO worth"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_kept_aside(path: Path, damage: Callable[[bytes], bytes]) -> None:
    for n in range(20):
        solve(Progress(path), f"e{n}", source="x" * 2000)
    Progress(path).add_score("ZeRO-1", MEASURES)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)

    progress = Progress(path)
    assert progress.scores() == {}
    solve(progress, "zero1.step")
    aside = path.with_name("progress.sqlite3.damaged-1")
    assert progress.notice.startswith(f"The progress file {path} is damaged (")
    assert f"kept, unchanged, as {aside}" in progress.notice
    assert kept_aside(path) == [aside]
    assert aside.read_bytes() == damaged
    assert Progress(path).summary().exercises.keys() == {"zero1.step"}
    assert not Progress(path).notice


def test_an_attempt_survives_the_damage_of_its_file(path: Path) -> None:
    progress = Progress(path)
    attempt = progress.begin_attempt("zero1.step", "def step(): ...")
    path.write_bytes(b"not a database at all\n" * 1000)
    progress.finish_attempt(attempt, "passed", [])
    last = Progress(path).last_attempt("zero1.step")
    assert last is not None and (last.id, last.status) == (attempt.id, "passed")
    assert len(kept_aside(path)) == 1


def test_each_damaged_file_is_kept(path: Path) -> None:
    progress = Progress(path)
    for text in (b"first" * 1000, b"second" * 1000):
        progress.hint_taken("zero1.step", 0)
        path.write_bytes(text)
    assert progress.hints("zero1.step") == []
    assert [file.read_bytes()[:5] for file in kept_aside(path)] == [b"first", b"secon"]


@pytest.mark.parametrize("damage", [garbage, bad_text])
def test_a_damaged_file_in_a_read_only_folder_stays_where_it_is(
    open_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    Progress(open_path).hint_taken("zero1.step", 1)
    damaged = damage(open_path.read_bytes())
    open_path.write_bytes(damaged)
    with read_only_folder(open_path):
        progress = Progress(open_path)
        solve(progress, "zero1.step")
        assert progress.summary().exercises["zero1.step"].passed
        assert "kept in memory" in progress.notice
    assert open_path.read_bytes() == damaged


def test_what_can_be_read_of_a_damaged_file_stays_visible_in_a_read_only_folder(open_path: Path) -> None:
    for name in ("zero1.step", "zero2.step"):
        solve(Progress(open_path), name)
    open_path.write_bytes(open_path.read_bytes().replace(b"zero2.step", b"zero2.ste\xff"))
    with read_only_folder(open_path):
        progress = Progress(open_path)
        assert progress.summary().exercises["zero1.step"].passed
        assert "kept in memory" in progress.notice


ADD_NOTES = ("CREATE TABLE notes (text TEXT)", "INSERT INTO notes VALUES ('from the next version')")


def test_a_file_from_a_newer_version_is_kept_aside(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, ADD_NOTES))
        solve(Progress(path), "zero3.gather")
    newer = path.read_bytes()

    progress = Progress(path)
    solve(progress, "zero1.step")
    aside = path.with_name("progress.sqlite3.newer-1")
    known = len(store.MIGRATIONS)
    assert f"by a newer version of the course (format {known + 1}, this one reads up to {known})" in progress.notice
    assert progress.notice.endswith("Update the course, then rename the file back.")
    assert aside.read_bytes() == newer
    assert Progress(path).summary().exercises.keys() == {"zero1.step"}


def test_an_older_file_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve(Progress(path), "zero1.step")
    monkeypatch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, ADD_NOTES))
    for _ in range(2):
        progress = Progress(path)
        assert progress.summary().exercises["zero1.step"].passed
        assert not progress.notice
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(store.MIGRATIONS),)
        assert db.execute("SELECT text FROM notes").fetchall() == [("from the next version",)]


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_exercises_that_were_renamed_stay_solved(old: str, new: str, path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", store.MIGRATIONS[:3])  # as version 2.0 wrote it
        solve(Progress(path), old)
        Progress(path).hint_taken(old, 1)

    progress = Progress(path)
    assert progress.summary().exercises[new].passed
    assert progress.hints(new) == [1]


def test_half_a_migration_is_undone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve(Progress(path), "zero1.step")
    before = path.read_bytes()
    steps = (*store.MIGRATIONS, (*ADD_NOTES, "this is not SQL"))
    monkeypatch.setattr(store, "MIGRATIONS", steps)
    progress = Progress(path)
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        progress.summary()
    assert path.read_bytes() == before
