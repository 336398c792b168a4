"""The order in which the kernel handles what the browser sends."""

from __future__ import annotations

from ipywidgets import Widget


def keep_order(widget: Widget) -> None:
    """Let one thread handle the messages to `widget` and to everything in it, in the order in which they were sent.

    JupyterLab asks for one thread of the kernel, a subshell, for all widgets. ipykernel 7.4 instead chooses a thread
    for each widget, the one that last wrote to it: a click on a button could overtake the number typed before it.
    Without the method that chooses, ipykernel does as JupyterLab asks.
    """
    widget.comm._reply_subshell_for = None
    for child in getattr(widget, "children", ()):
        keep_order(child)
