"""A page of the learner's own results, to keep or to show: the scoreboard, and what is solved in each lesson."""

from html import escape
from pathlib import Path

from ..progress import CourseMap, own_progress
from ..syllabus import lessons
from .scores import Scoreboard


class MyResults:
    """The learner's results, with the forms that a notebook shows, and `save` to write them to a file."""

    def __init__(self) -> None:
        done = own_progress()
        begun = [stop for stop in CourseMap(lessons(), done.summary()).stops if stop.done]
        self.measured = Scoreboard(done.scores(), done.notice)
        self.solved = [f"{stop.lesson.title}: {stop.done} of {len(stop.items)} exercises and quizzes" for stop in begun]

    def _repr_html_(self) -> str:
        solved = "".join(f"<li>{escape(line)}</li>" for line in self.solved)
        return f"{self.measured._repr_html_()}<ul>{solved}</ul>"

    def __repr__(self) -> str:
        return "\n".join([repr(self.measured), *self.solved])

    def save(self, path: str | Path) -> None:
        """Write the page to an HTML file."""
        style = "font-family: sans-serif; max-width: 50em; margin: 2em auto; color: black; background: white"
        head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>ZeRO, built and measured</title>'
        Path(path).write_text(f'{head}<body style="{style}">{self._repr_html_()}</body></html>', encoding="utf-8")


def my_results() -> MyResults:
    """Return a page of what you have measured and solved. As the last line of a cell it is shown."""
    return MyResults()
