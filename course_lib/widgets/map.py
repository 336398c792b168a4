"""The course map in a notebook: a table with a link to every lesson."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from ..progress import CourseMap, Item, Stop
from .style import SHEET, inline

LEFT = ".course-widget.course-card table :is(th, td, caption) { text-align: left; }"  # JupyterLab aligns right


class ShownMap:
    """A `CourseMap` with the forms that a notebook shows: HTML, or plain text.

    It is not an ipywidget: links to notebooks work in an output, and the output remains after the kernel has stopped.
    """

    def __init__(self, course: CourseMap, notice: str) -> None:
        self.course, self.notice = course, notice

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{name}</th>' for name in ("exercise or quiz", "state", "so far"))
        bodies = "".join(map(_body, self.course.stops))
        table = f"<table><caption>What is done</caption><thead><tr>{head}</tr></thead>{bodies}</table>"
        notice_html = "".join(f"<p>{inline(text)}</p>" for text in (self.notice,) if text)
        return (
            f"<style>{SHEET}{LEFT}</style>"
            f'<div class="course-widget course-card"><h3>Course map</h3>{notice_html}'
            f'<p><strong>{self._advice()}</strong></p><div class="course-scroll">{table}</div></div>'
        )

    def _advice(self) -> str:
        if self.course.next is None:
            return escape(self.course.advice)
        item, stop = self.course.next
        return f"Next: {escape(item.name)}, in {_link(stop)}"

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, [self.notice, str(self.course)]))


def _body(stop: Stop) -> str:
    heading = f'<tr><th scope="rowgroup" colspan="3">{_link(stop)} ({escape(stop.standing)})</th></tr>'
    return f"<tbody>{heading}{''.join(map(_row, stop.items))}</tbody>"


def _row(item: Item) -> str:
    state = f'<span aria-hidden="true">{item.shape}</span> {escape(item.state)}'
    return f'<tr><th scope="row">{escape(item.name)}</th><td>{state}</td><td>{escape(item.detail)}</td></tr>'


def _link(stop: Stop) -> str:
    return f'<a href="{quote(stop.path.name)}">{escape(stop.title)}</a>'
