"""The course map in a notebook: a card with a link for every lesson, and one button to continue."""

from html import escape
from urllib.parse import quote

from ..progress import CourseMap, Item, Stop, own_progress
from ..syllabus import lessons
from .style import SHEET, details, inline, title

HEAD = title("Map", "Where you are")


class ShownMap:
    """A `CourseMap` with the forms that a notebook shows: HTML, or plain text.

    It is not an ipywidget: links to notebooks work in an output, and the output remains after the kernel has stopped.
    """

    def __init__(self, course: CourseMap, notice: str) -> None:
        self.course, self.notice = course, notice

    def _repr_html_(self) -> str:
        notice_html = f"<p>{inline(self.notice)}</p>" if self.notice else ""
        cards = "".join(self._card(stop) for stop in self.course.stops)
        return (
            f'<style>{SHEET}</style><div class="course-widget">{HEAD}{notice_html}'
            f'<p>{self._continue()}</p><div class="course-map">{cards}</div></div>'
        )

    def _continue(self) -> str:
        stop = self.course.next
        if stop is None or stop.next is None:
            return f"<strong>{escape(self.course.advice)}</strong>"
        link = f'<a class="course-primary" href="{quote(stop.lesson.path.name)}">Continue</a>'
        return f"{link} " + escape(f"{stop.next.title}, in {stop.lesson.title}")

    def _card(self, stop: Stop) -> str:
        style = "course-card course-next-lesson" if stop is self.course.next else "course-card"
        bar = f'<progress max="{len(stop.items) or 1}" value="{stop.done}" aria-label="{stop.standing}"></progress>'
        link = f'<a href="{quote(stop.lesson.path.name)}">{escape(stop.lesson.title)}</a>'
        items = details("Exercises and quiz", f"<ul>{''.join(map(_line, stop.items))}</ul>")
        return f'<div class="{style}"><h4>{link}</h4>{bar}<p>{escape(stop.standing)}</p>{items}</div>'

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, [self.notice, str(self.course)]))


def course_map() -> ShownMap:
    """Return the map of all lessons, with what is done and what to do next. As the last line of a cell it is shown.

    Raises:
        CourseError: a notebook of the course cannot be read.
    """
    done = own_progress()
    return ShownMap(CourseMap(lessons(), done.summary()), done.notice)


def _line(item: Item) -> str:
    so_far = ", ".join(filter(None, [item.state, item.detail]))
    return f'<li><span aria-hidden="true">{item.shape}</span> {escape(item.title)}: {escape(so_far)}</li>'
