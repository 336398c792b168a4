"""What holds for every exercise of the course, whoever declared it."""

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest

from course_lib.exercises import Exercise, Mistake, Verdict, get, names
from course_lib.exercises.checking import cases, diagnose
from course_lib.exercises.checking.cases import draw
from course_lib.exercises.checking.observe import recall
from course_lib.syllabus import LESSONS

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
EXERCISES = [get(name) for name in names()]
MISTAKES = [(exercise, mistake) for exercise in EXERCISES for mistake in exercise.mistakes]
VARIANTS = [(exercise, name) for exercise in EXERCISES for name in exercise.variants]

MORE_RANKS = {"start.first": {6}, "context.ring_attention": {8}}
"""More than four ranks: as many as the first lesson's picture has, and enough to see that memory does not grow."""

SEEDS = int(os.environ.get("SEEDS", "1"))
"""With how many seeds mistakes and variants are tried: three by `make endurance`. References are tried with nine.

Only `make endurance` compares wrong answers with pairs of mistakes, too."""

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
each_mistake = pytest.mark.parametrize(
    ("exercise", "mistake"), MISTAKES, ids=[f"{exercise.name}-{mistake.id}" for exercise, mistake in MISTAKES]
)


@each
def test_the_reference_passes(exercise: Exercise) -> None:
    for seed in range(SEEDS**2):
        verdict = exercise.check(exercise.reference, seed=seed)
        assert repr(verdict).startswith(f"✓ {exercise.name}: passed"), f"seed {seed}"


@each
def test_the_cell_as_it_comes_is_unattempted(exercise: Exercise) -> None:
    assert exercise.check(exercise.stub).status == "unattempted"


@pytest.mark.slow
@each_mistake
def test_a_mistake_is_rejected_under_its_own_id(
    exercise: Exercise, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(SEEDS):
        verdict = verdict_of(exercise, mistake, seed, monkeypatch)
        assert (verdict.status in ("failed", "error"), verdict.mistake) == (True, mistake.id), f"{seed}: {verdict}"
        assert verdict.findings[0].likely == mistake.sentence
        assert verdict.findings[0].action == mistake.action


def verdict_of(exercise: Exercise, mistake: Mistake, seed: int, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """Return the verdict on a mistake, on as many of the first cases as name it. On each case it runs once.

    More cases can only tell it from more of the other mistakes. With more seeds it runs on every case, and twice: as a
    solution, and when the check compares it. That proves that it does the same on every run.

    Mistakes are compared in the order of their declaration, as if the source were unknown, and without pairs.
    """
    monkeypatch.setattr(diagnose, "_by_source", lambda mistakes, *_: mistakes)
    monkeypatch.setattr(diagnose, "SECONDS", 0.0)
    if SEEDS > 1:
        return exercise.check(mistake.solution, seed=seed)
    monkeypatch.setattr(cases, "observe", recall)
    for count in range(1, exercise.case_count + 1):
        monkeypatch.setattr(exercise, "case_count", count)
        verdict = exercise.check(mistake.solution, seed=seed)
        if verdict.mistake == mistake.id:
            break
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "name"), VARIANTS, ids=[f"{exercise.name}-{name}" for exercise, name in VARIANTS])
def test_a_right_answer_written_differently_passes(exercise: Exercise, name: str) -> None:
    for seed in range(SEEDS):
        assert repr(exercise.check(exercise.variants[name](), seed=seed)).startswith("✓"), f"seed {seed}"


@each
def test_it_knows_enough_mistakes_variants_and_hints(exercise: Exercise) -> None:
    ids = [mistake.id for mistake in exercise.mistakes]

    assert len(set(ids)) == len(ids) >= 6
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ids)
    assert len(exercise.variants) >= 2
    assert len(exercise.hints) >= 4
    assert all([exercise.title, exercise.task, exercise.explanation])


@each
def test_a_check_finds_in_the_reference_what_a_mistake_changes(exercise: Exercise) -> None:
    """If it did not, a solution that has the right text there would never contradict the mistake."""
    source = diagnose._nameless(diagnose._words(exercise.reference), exercise.reference)
    for mistake in exercise.mistakes:
        for old in mistake.edits:
            assert diagnose._contains(source, old, exercise.reference), (mistake.id, old)


@each
def test_its_cases_have_one_to_four_ranks(exercise: Exercise) -> None:
    sizes = {case.world_size for seed in range(5) for case in draw(exercise, seed)}
    assert sizes <= {0, 1, 2, 3, 4} | (MORE_RANKS.get(exercise.name, set()))


@each
def test_the_hints_leave_something_to_write(exercise: Exercise) -> None:
    function = ast.parse(exercise.solution).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:] if ast.get_docstring(function) else function.body
    statements = [ast.get_source_segment(exercise.solution, statement) or "" for statement in body]

    assert [statement for statement in statements if statement not in "\n".join(exercise.hints)]


def cells() -> dict[str, str]:
    """The source of each cell with an exercise, by the exercise's name."""
    sources = [cell.source for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    found = [(match[1], source) for source in sources if (match := re.match(r'@exercise\("([^"]*)"\)', source))]
    assert len(dict(found)) == len(found), "an exercise has two cells"
    return dict(found)


def declared(folder: Path) -> set[str]:
    """The name of each exercise that a file in `folder` declares. No file is imported: a broken one counts, too."""
    files = [path for path in folder.glob("*/*.py") if re.search(r"^exercise\b.*=", path.read_text("utf-8"), re.M)]
    return {f"{path.parent.name}.{path.stem}" for path in files}


def test_every_exercise_has_its_cell_in_a_notebook() -> None:
    assert {*cells()} == declared(LESSONS)
    assert cells() == {exercise.name: exercise.cell for exercise in EXERCISES}


def test_an_exercise_is_declared_without_a_cell_and_even_if_its_file_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/forgotten.py").write_text('exercise = Exercise("ranks.forgotten")')
    (tmp_path / "ranks/broken.py").write_text("import not_there\n\nexercise: Exercise = made()")
    (tmp_path / "ranks/data.py").write_text('exercises = 2\n"exercise = 1"')

    assert declared(tmp_path) == {"ranks.forgotten", "ranks.broken"}


@each
def test_a_next_step_gives_a_direction_and_not_the_code(exercise: Exercise) -> None:
    """No next step quotes what a learner has to write: more than a name, in the reference, and not in the task."""
    given, answer = squeezed(exercise.task + exercise.cell), squeezed(exercise.solution)
    for mistake in exercise.mistakes:
        quoted = re.findall(r"`([^`]+)`", mistake.action)
        told = [code for code in quoted if not re.fullmatch(r"[\w.]+(\(\))?", code)]
        assert [code for code in told if squeezed(code) in answer and squeezed(code) not in given] == [], mistake.id


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)
