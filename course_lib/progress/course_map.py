"""The course map: every lesson with the state of its exercises and quizzes, and the next thing to do. No widgets."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..quizzes import Score
from .lessons import Lesson
from .progress import ExerciseProgress, Summary


@dataclass(frozen=True, kw_only=True)
class Item:
    """One exercise or quiz. `state` is words, `detail` is numbers; `begun` and `done` are its progress."""

    name: str
    state: str
    detail: str
    begun: bool
    done: bool

    @property
    def shape(self) -> str:
        """A mark for the state that does not depend on colour."""
        return "✓" if self.done else "◐" if self.begun else "○"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One lesson on the map: its notebook's `path` and `title`, and its exercises and quizzes, in order."""

    path: Path
    title: str
    items: tuple[Item, ...]

    @property
    def standing(self) -> str:
        return f"{sum(item.done for item in self.items)} of {len(self.items)} done"


class CourseMap:
    """The lessons, and what the learner has done of them.

    Attributes:
        stops: the lessons, in order.
    """

    def __init__(self, lessons: Sequence[Lesson], summary: Summary) -> None:
        self.stops = tuple(
            Stop(path=lesson.path, title=lesson.title, items=tuple(_items(lesson, summary))) for lesson in lessons
        )

    @property
    def next(self) -> tuple[Item, Stop] | None:
        """The first exercise or quiz that is not done, and its lesson; None if everything is done."""
        waiting = ((item, stop) for stop in self.stops for item in stop.items if not item.done)
        return next(waiting, None)

    @property
    def advice(self) -> str:
        """The next thing to do, in words."""
        if not self.stops:
            return "There are no lessons here."
        if self.next is None:
            return "Everything is done."
        item, stop = self.next
        return f"Next: {item.name}, in {stop.path.name}"

    def __str__(self) -> str:
        width = max((len(item.name) for stop in self.stops for item in stop.items), default=0)
        lines = itertools.chain.from_iterable(_lines(stop, width) for stop in self.stops)
        return "\n".join([*lines, self.advice])


def _items(lesson: Lesson, summary: Summary) -> Iterator[Item]:
    for name in lesson.exercises:
        tried = summary.exercises.get(name, ExerciseProgress())
        counts = f"{_count(tried.attempts, 'attempt')}, {_count(tried.hints, 'hint')}"
        begun = bool(tried.attempts or tried.hints)
        yield Item(name=name, state=tried.state, detail=counts if begun else "", begun=begun, done=tried.passed)
    for name, questions in lesson.quizzes.items():
        right = summary.quizzes.get(name, frozenset()).intersection(questions)
        score, begun = Score(right=len(right), questions=len(questions)), name in summary.quizzes
        state = str(score) if begun else "not started"
        yield Item(name=f"quiz {name}", state=state, detail="", begun=begun, done=score.done)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _lines(stop: Stop, width: int) -> Iterator[str]:
    yield f"{stop.title} ({stop.standing})"
    for item in stop.items:
        yield f"  {item.shape} {item.name:<{width}}  {item.state:<12} {item.detail}".rstrip()
    yield ""
