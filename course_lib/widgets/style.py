"""The look that the course's widgets share, and the HTML that they are made of.

Colours come from JupyterLab's own CSS variables, so that both themes are right; a fallback follows for where
JupyterLab is not there. Colour only repeats what a word says. Lengths are in em and percent, for zooming.
"""

import re
from html import escape

from IPython.display import display
from ipywidgets import HTML, Widget

SHEET = """
.course-card {
  border: 1px solid var(--jp-border-color1, #bdbdbd);
  border-radius: 0.25em;
  padding: 0.75em 1em;
  margin: 0.5em 0;
  max-width: 60em;
}
.course-widget, .course-widget .widget-html-content, .course-widget label, .course-widget button {
  color: var(--jp-content-font-color1, inherit);
  font-family: var(--jp-content-font-family, inherit);
  font-size: var(--jp-content-font-size1, inherit);
  line-height: 1.5;
}
.course-widget .widget-html-content { min-width: 0; } /* so that a long line of code scrolls, and not all the card */
.course-widget .widget-html-content p { margin: 0 0 0.5em; }
.course-widget h3, .course-widget h4 { margin: 0 0 0.5em; font-weight: 600; line-height: 1.3; }
.course-widget h3 { font-size: 1.15em; }
.course-widget h4 { font-size: 1em; }
.course-widget code, .course-widget pre {
  font-family: var(--jp-code-font-family, monospace);
  background: var(--jp-layout-color2, rgba(128, 128, 128, 0.15));
  color: inherit;
}
.course-widget code { padding: 0.1em 0.3em; border-radius: 0.2em; }
.course-widget pre { padding: 0.6em 0.8em; margin: 0 0 0.5em; overflow-x: auto; white-space: pre; }

/* ipywidgets gives an option one line of fixed height, which cuts off a long sentence. */
.course-widget .widget-radio-box label,
.course-widget .widget-checkbox,
.course-widget .widget-checkbox label {
  display: flex;
  align-items: baseline;
  height: auto;
  white-space: normal;
  line-height: 1.5;
  margin: 0;
  padding: 0.15em 0;
}
.course-widget .widget-radio-box label { flex-direction: row-reverse; justify-content: flex-end; }
.course-widget .widget-radio-box input, .course-widget .widget-checkbox input[type="checkbox"] {
  flex: none;
  height: 1em;
  width: 1em;
  margin: 0 0.5em 0 0.3em;
}
.course-widget .widget-radio-box input { align-self: flex-start; margin-top: 0.25em; }
.course-widget .widget-radio-box { margin-bottom: 0 !important; }
.course-widget .widget-text {
  flex-wrap: wrap;
  height: auto;
  max-width: min(30em, calc(100% - 2 * var(--jp-widgets-margin, 2px)));
}
.course-widget .widget-text .widget-label { width: auto; text-align: left; white-space: normal; }
.course-widget .widget-text input { min-width: 8em; }
.course-widget input::placeholder { color: var(--jp-content-font-color2, inherit); opacity: 1; }

.course-widget button {
  height: auto;
  padding: 0.2em 1em;
  margin-top: 0.4em;
  border: 1px solid var(--jp-border-color1, #bdbdbd);
}
.course-widget button:focus-visible,
.course-widget input:focus-visible,
.course-widget summary:focus-visible {
  outline: 0.15em solid var(--jp-brand-color1, Highlight) !important;
  outline-offset: 0.15em;
}
/* "table" in each, to go before what JupyterLab says of tables. */
.course-widget table { border-collapse: collapse; margin: 0.2em 0 0.6em; }
.course-widget table th, .course-widget table td {
  border: 1px solid var(--jp-border-color2, #e0e0e0);
  padding: 0.15em 0.6em;
  text-align: left;
  vertical-align: top;
  color: inherit;
  background: none;
}
.course-scroll { overflow-x: auto; }

.course-feedback { border-left: 0.3em solid; padding: 0.3em 0.8em; margin-top: 0.5em; }
.course-right { border-color: var(--jp-success-color1, #388e3c); }
.course-wrong { border-color: var(--jp-warn-color1, #f57c00); }
.course-note { border-color: var(--jp-border-color1, #bdbdbd); }

/* JupyterLab breaks lines of output inside words. In a lesson no output does, whatever its cell. */
.jp-Notebook:has(.course-widget) .jp-OutputArea-output pre { word-break: normal; }

/* The plain-text form stands in for a widget that is not alive, and only for that. */
.jp-OutputArea:has(.course-widget) .course-text { display: none; }

/* When its kernel has ended, a card keeps what it says. ipywidgets would put a red icon before each of its parts. */
.course-widget .jupyter-widgets-disconnected::before { content: none; }
.course-widget.jupyter-widgets-disconnected::before {
  content: "The kernel that ran this cell has ended. "
    "To go on, run the cells above it (menu Run, Run All Above Selected Cell), then this one.";
  color: inherit;
  font: inherit;
  padding: 0.25em 0;
}
.course-widget.jupyter-widgets-disconnected .widget-button { display: none; }
.course-widget.jupyter-widgets-disconnected :is(input, select) { opacity: 0.6; pointer-events: none; }
"""

# JupyterLab takes a letter that is typed outside of text, with a list or a button in focus, say, for a command to the
# notebook: "m" makes the cell Markdown, and the widget is gone. Its handler is the page's, so that what stops here does
# not reach it. And ipywidgets tells Python that Enter was pressed before it tells what was typed: hence the `change`.
# The `style` runs this when the browser has it, for ipywidgets has no other way to listen to keys.
_KEYS = """
const widget = this.closest('.course-widget');
widget.onkeydown = event => {
  const runs = event.shiftKey && event.key === 'Enter';
  if (!(runs || event.ctrlKey || event.altKey || event.metaKey)) event.stopPropagation();
};
widget.addEventListener('keydown', event => {
  const typed = event.key === 'Enter' && event.target.matches('.widget-text input');
  if (typed) event.target.dispatchEvent(new Event('change', {bubbles: true}));
}, true);
"""
# JupyterLab breaks lines of output inside words, unless it is asked not to.
_CARD = (
    "white-space: pre-wrap; word-break: normal; "
    "border: 1px solid #999999; border-radius: 0.25em; padding: 0.75em 1em; max-width: 60em"
)
# A saved widget has no model, and JupyterLab shows "Loading widget", then "model not found" in its place: an output
# without elements. A notebook that is not trusted loses this style, but there JupyterLab shows no widget at all.
_NO_ERROR = """<style>
.jp-OutputArea:has(.course-text) .lm-Panel.jp-OutputArea-output:not(:has(*)) { display: none; }
</style>"""
_MARKS = re.compile(r"`([^`]+)`|(?<!\w)\*(\w[^*`]*)\*(?!\w)")


def sheet() -> HTML:
    """The style sheet as a widget: the first child of each widget of the course, whose keys it minds."""
    return HTML(f'<style onload="{_KEYS}">{SHEET}</style>')


def markup(text: str) -> str:
    """`text` as safe HTML: blank lines part paragraphs, three backticks hold a block of code; see `inline`."""
    pieces = []
    for i, piece in enumerate(text.split("```")):
        if i % 2:
            code = piece.partition("\n")[2]  # what stands behind the backticks is the language
            pieces.append(f"<pre>{escape(code)}</pre>")
        else:
            paragraphs = filter(None, map(str.strip, piece.split("\n\n")))
            pieces += [f"<p>{inline(paragraph)}</p>" for paragraph in paragraphs]
    return "".join(pieces)


def inline(text: str) -> str:
    """`text` as safe HTML without paragraphs: what stands between backticks is code, between asterisks stressed."""
    return _MARKS.sub(lambda found: f"<code>{found[1]}</code>" if found[1] else f"<em>{found[2]}</em>", escape(text))


def plain(text: str) -> str:
    """`text` for labels, which hold no HTML: without its backticks and asterisks."""
    return _MARKS.sub(lambda found: found[1] or found[2], text)


def alert(headline: str, message: str = "", *, tone: str = "note") -> str:
    """A message that is read out as it appears; `tone` ("right", "wrong", "note") colours what it says.

    A widget replaces its HTML as a whole, and screen readers keep silent about a new element that is merely a
    live region; they do read one with the role of an alert.
    """
    return f'<div role="alert">{note(headline, message, tone=tone)}</div>'


def note(headline: str, message: str = "", *, tone: str = "note") -> str:
    """The same message, there from the start and so not read out by itself."""
    first, *more = message.split("\n")
    paragraphs = [f"<strong>{escape(headline)}</strong> {inline(first)}", *map(inline, more)]
    body = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return f'<div class="course-feedback course-{tone}">{body}</div>'


def display_with_text(widget: Widget, *, text: str, summary: str) -> None:
    """Display a widget after its plain-text form, which the reader sees where the widget has no kernel.

    A notebook that is reopened without its kernel has lost its widgets, and JupyterLab would show an error in
    place of the other forms of the same output. So `text` is an output of its own, with `summary`, one line, that
    says how to bring the widget to life; a living widget hides both. In the widget's own output its text is empty:
    where only text can be shown, the other output has the text already.
    """
    display_text(f"{text}\n\n{summary}")
    display(widget._repr_mimebundle_() | {"text/plain": ""}, raw=True)


def display_text(text: str) -> None:
    """Display the plain-text form of a widget, which is hidden while the widget is alive."""
    state = (
        "This card is saved, and so are your answers. To go on, run the cells above it (menu Run, Run All Above "
        "Selected Cell), then this one."
    )
    html = f'<pre class="course-text" style="{_CARD}">{escape(text)}\n\n{state}</pre>{_NO_ERROR}'
    display({"text/html": html, "text/plain": text}, raw=True)
