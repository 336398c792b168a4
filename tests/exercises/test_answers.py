"""Answers that were written for no declaration: right ones in other styles, and wrong ones, many with two mistakes.

`answers.txt` has the name of the exercise, "right" or "wrong", and for a wrong one the ids of the mistakes that are in
it ("?" for one that the exercise does not know), then the code.
"""

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.exercises import get
from course_lib.exercises.checking import check, diagnose
from tests.exercises.test_every_exercise import SEEDS

ANSWERS = Path(__file__).with_name("answers.txt").read_text("utf-8").split("### ")[1:]


def made(name: str, code: str) -> Callable[..., Any]:
    file = f"<{name} {hash(code)}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    reference = get(name).reference
    scope = {**reference.__globals__, "F": torch.nn.functional}
    exec(compile(code, file, "exec"), scope)
    solution: Callable[..., Any] = scope[reference.__name__]
    return solution


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.partition("\n")[0].replace(" ", "-"))
def test_an_answer_is_judged_and_no_mistake_is_named_that_is_not_in_it(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _, code = answer.partition("\n")
    name, kind, *ids = head.split()
    exercise, named = get(name), list[Any]()
    if SEEDS == 1:
        monkeypatch.setattr(diagnose, "SECONDS", 0.0)  # pairs of mistakes: by `make endurance`, as `SEEDS` says

    def spied(*args: Any) -> Any:
        named.append(diagnose.diagnose(*args))
        return named[-1]

    monkeypatch.setattr(check, "diagnose", spied)
    verdict = exercise.check(made(name, code))

    assert (verdict.status == "passed") == (kind == "right"), str(verdict)
    guessed = {id for one in named if one and one not in exercise.mistakes for id in one.id.split(" + ")}
    assert guessed <= set(",".join(ids).split(",")), str(verdict)
