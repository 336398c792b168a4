"""A card of HTML: how a click in the browser becomes a call in Python."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence

from ipywidgets import HTML, Layout, Text, VBox

Fields = Mapping[str, str]


class Card(VBox):
    """Parts of HTML, and the actions that their buttons and forms call: `<button data-action="hint">`.

    `static/card.js` sends an action together with the card's fields, so that a click cannot overtake what was typed
    before it. It writes the last actions, as JSON, into a hidden field, which ipywidgets sends to Python. Each action
    has a number: one that arrives twice is done once, and one that ipywidgets leaves out is in the next message.

    Args:
        parts: the HTML, from top to bottom. A part that is written again loses what was typed into it.
        actions: what to call, by the name of the action, with the values of the card's fields.
    """

    def __init__(self, parts: Sequence[HTML], actions: Mapping[str, Callable[[Fields], object]]) -> None:
        self._actions, self._done, self._lock = actions, 0, threading.Lock()
        self.inbox = Text(layout=Layout(display="none"))
        self.inbox.add_class("course-inbox")
        self.inbox.observe(lambda change: self._receive(change["new"]), "value")
        # ipykernel 7.4 hands a message to the thread that wrote to the field last. Without this method it does what
        # JupyterLab asks: a thread of its own for widgets, which answers while a cell runs.
        self.inbox.comm._reply_subshell_for = None
        super().__init__([*parts, self.inbox])
        self.add_class("course-card")

    def _receive(self, events: str) -> None:
        with self._lock:
            for number, action, fields in json.loads(events):
                if number > self._done:
                    self._done = number
                    self._actions[action](fields)
