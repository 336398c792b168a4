"""The HTML that the course's widgets are made of. Its look is in `static/course.css`."""

from collections.abc import Container, Iterable, Mapping
from html import escape
from pathlib import Path

import mistune
from IPython.display import display
from ipywidgets import HTML, Widget
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

STATIC = Path(__file__).with_name("static")
LESSON = (STATIC / "lesson.css").read_text("utf-8")
"""For a whole lesson: the width of its texts, JupyterLab's output, which breaks lines inside words, and saved cards."""
SHEET = (STATIC / "course.css").read_text("utf-8") + LESSON
SCRIPT = (STATIC / "card.js").read_text("utf-8")
SAVED = (STATIC / "saved.css").read_text("utf-8")
GO_ON = "To go on, run the cells above this one (menu Run, Run All Above Selected Cell), then this cell."
AS_TEXT = "As text"


class _Renderer(mistune.HTMLRenderer):
    def block_code(self, code: str, info: str | None = None) -> str:
        text = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)) if info == "python" else escape(code)
        return f"{pre(text)}\n"


_renderer = _Renderer(escape=True)
_markdown = mistune.Markdown(_renderer)


def sheet() -> HTML:
    """Return the style sheet as a widget, the first child of each widget of the course.

    ipywidgets has no other way to run a script than a handler: `onload` runs when the browser has the style.
    """
    return HTML(f'<style onload="{escape(SCRIPT)}">{SHEET}</style>')


def markup(text: str) -> str:
    """Return Markdown as safe HTML: tags in `text` are shown, not obeyed."""
    return str(_markdown(text))


def inline(text: str) -> str:
    """Return one line of Markdown as safe HTML without a paragraph. `12. You` stays text, and no list begins."""
    return str(_renderer.render_tokens(_markdown.inline(text, {"ref_links": {}}), _markdown.block.state_cls()))


def title(kind: str, name: str, level: int = 3) -> str:
    """Return a card's heading, such as "Exercise" and its title. `level` is 2 above a lesson's first section."""
    return f'<h{level}><span class="course-kind">{escape(kind)}</span> {inline(name)}</h{level}>'


def alert(headline: str, message: str = "", *, tone: str = "note") -> str:
    """Return a message that is read out when it appears. Its `tone` ("right", "wrong", "note") chooses the colour.

    A widget replaces its HTML as a whole. Screen readers ignore a new element that is only a live region, and read one
    with the role of an alert.
    """
    return f'<div role="alert">{note(headline, message, tone=tone)}</div>'


def note(headline: str, message: str = "", *, tone: str = "note") -> str:
    """Return the same message without the role: it is there from the start, and is not read out by itself."""
    first, *more = message.split("\n")
    chip = f'<strong class="course-chip course-{tone}">{escape(headline)}</strong>'
    body = f"<p>{chip} {inline(first)}</p>" + "".join(f"<p>{inline(line)}</p>" for line in more)
    return f'<div class="course-feedback course-{tone}">{body}</div>'


def details(summary: str, html: str) -> str:
    """Return `html`, folded: a click or the Enter key on the summary opens it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def scrolled(names: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table in a box that scrolls. The Tab key reaches the box, so that the arrow keys can scroll it."""
    head, body = "".join(f'<th scope="col">{name}</th>' for name in names), "".join(rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="course-scroll" tabindex="0">{table}</div>'


def pre(html: str) -> str:
    """Return lines of code or output, which scroll in the same way."""
    return f'<pre tabindex="0">{html}</pre>'


def button(label: str, action: str) -> str:
    """Return a button that calls this action of its card."""
    return f'<button type="button" data-action="{action}">{escape(label)}</button>'


def form(action: str, fields: str, label: str = "") -> str:
    """Return fields with a button that calls this action of their card, as the Enter key does.

    Without a label there is no button, and each choice calls the action.
    """
    if not label:
        return f'<form data-action="{action}" data-on="input">{fields}</form>'
    return f'<form data-action="{action}">{fields}<button class="course-primary">{escape(label)}</button></form>'


def options(
    legend: str, choices: Mapping[str, str], *, picked: Container[str], several: bool = False, about: str = ""
) -> str:
    """Return one field: options to pick, by the value that is sent. Their texts are Markdown.

    Args:
        legend: what to do, and the name of the group for screen readers.
        choices: text by value.
        picked: the values that are picked.
        several: whether several can be picked.
        about: the id of the element that names the group instead of the legend.
    """
    kind, named = "checkbox" if several else "radio", f' aria-labelledby="{about}"' if about else ""
    labels = "".join(
        f'<label><input type="{kind}" name="answer" value="{escape(value)}"{" checked" * (value in picked)}>'
        f"<span>{inline(text)}</span></label>"
        for value, text in choices.items()
    )
    role = "group" if several else "radiogroup"
    return f'<fieldset{named} role="{role}"><legend>{inline(legend)}</legend>{labels}</fieldset>'


def number(label: str, *, unit: str, value: str) -> str:
    """Return a field for a number, with or without its unit."""
    example = f"for example 12.5 {unit}".strip()
    asked = f"{label} in {unit}" if unit else label
    return (
        f"<label>{escape(asked)} "
        f'<input type="text" name="answer" value="{escape(value)}" placeholder="{escape(example)}" autocomplete="off">'
        "</label>"
    )


def display_with_text(widget: Widget, *, title: str, state: str, style: str = SAVED) -> None:
    """Display a widget after the card that stands in for it where it has no kernel, with its repr as the text."""
    display_saved(title=title, state=state, text=repr(widget), style=style)
    display_raw(widget)


def display_raw(widget: Widget) -> None:
    """Display a widget without text: the card that stands in for it has the text."""
    display(Widget._repr_mimebundle_(widget) | {"text/plain": ""}, raw=True)


def display_saved(*, title: str, state: str, text: str, style: str = SAVED) -> None:
    """Display the card that a reader sees where the widget has no kernel, as in a notebook that is opened again.

    JupyterLab says "model not found" in a widget's place, and shows no other form of the same output. So the card is
    an output of its own, which hides that line; a living widget hides the card.

    Args:
        title: the kind and title of the widget, in Markdown.
        state: what the learner has done, in a few words of Markdown.
        text: all of the widget as plain text.
        style: the style sheet of the card.
    """
    html = (
        f'<div class="course-saved"><p><strong>{inline(title)}</strong> <span class="course-state">{inline(state)}'
        f"</span></p><p>{GO_ON}</p>{details(AS_TEXT, f'<pre>{escape(text)}</pre>')}</div><style>{style}</style>"
    )
    display({"text/html": html, "text/plain": text}, raw=True)
