"""The course map: every lesson with the state of its exercises and quizzes, and the next thing to do. No widgets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..planner import count
from ..quizzes import Score
from ..syllabus import Lesson
from .progress import ExerciseProgress, Summary

BAR = 20  # characters


@dataclass(frozen=True, kw_only=True)
class Item:
    """One exercise or quiz. `state` is words, `detail` is numbers; `begun` and `done` are its progress."""

    title: str
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
    """One lesson on the map, with its exercises and quizzes in order."""

    lesson: Lesson
    items: tuple[Item, ...]

    @property
    def done(self) -> int:
        """The number of exercises and quizzes that are done."""
        return sum(item.done for item in self.items)

    @property
    def next(self) -> Item | None:
        """The first exercise or quiz that is not done; None if there is none."""
        return next((item for item in self.items if not item.done), None)

    @property
    def minutes_left(self) -> int:
        """The part of the lesson's minutes that belongs to what is not done, in steps of 5."""
        left = self.lesson.minutes * (len(self.items) - self.done) / max(1, len(self.items))
        return 5 * -int(-left // 5)

    @property
    def standing(self) -> str:
        left = f", about {self.minutes_left} minutes left" if self.minutes_left else ""
        return f"{self.done} of {len(self.items)} done{left}{', on the short route' * self.lesson.on_short_route}"


class CourseMap:
    """The lessons, and what the learner has done of them.

    Attributes:
        stops: the lessons, in order.
    """

    def __init__(self, lessons: Sequence[Lesson], summary: Summary) -> None:
        self.stops = tuple(Stop(lesson=lesson, items=tuple(_items(lesson, summary))) for lesson in lessons)

    @property
    def next(self) -> Stop | None:
        """The first lesson with something that is not done; None if everything is done."""
        return next((stop for stop in self.stops if stop.next), None)

    @property
    def advice(self) -> str:
        """The next thing to do, in words."""
        if not self.stops:
            return "There are no lessons here."
        stop = self.next
        if stop is None or stop.next is None:
            return "Everything is done."
        return f"Continue: {stop.next.title}, in {stop.lesson.path.name}"

    def __str__(self) -> str:
        return "\n".join([*map(_line, self.stops), "", self.advice])


def _items(lesson: Lesson, summary: Summary) -> Iterator[Item]:
    for name, title in lesson.exercises.items():
        tried = summary.exercises.get(name, ExerciseProgress())
        counts = f"{count(tried.attempts, 'attempt')}, {count(tried.hints, 'hint')}"
        begun = bool(tried.attempts or tried.hints)
        yield Item(title=title, state=tried.state, detail=counts if begun else "", begun=begun, done=tried.passed)
    for name, questions in lesson.quizzes.items():
        right = summary.quizzes.get(name, frozenset()).intersection(questions)
        score, begun = Score(right=len(right), questions=len(questions)), name in summary.quizzes
        yield Item(title="Quiz", state=str(score) if begun else "not started", detail="", begun=begun, done=score.done)


def _line(stop: Stop) -> str:
    """Return the bar, the title and the numbers."""
    full, mark = BAR * stop.done // max(1, len(stop.items)), " " if stop.next else "✓"
    return f"{'█' * full}{'░' * (BAR - full)} {mark} {stop.lesson.title} ({stop.standing})"
