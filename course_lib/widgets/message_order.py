"""The order in which the kernel handles what the browser sends."""

from __future__ import annotations

from ipywidgets import Widget


def keep_order(widget: Widget) -> None:
    """Let one thread handle the messages to `widget` and to everything in it, in the order in which they were sent.

    JupyterLab asks for one thread of the kernel, a subshell, for all widgets. ipykernel 7.4 instead chooses a thread
    for each widget, the one that last wrote to it: a click on a button could overtake the number typed before it.
    ipykernel does as JupyterLab asks where a comm, a widget's channel, lacks the method that chooses.
    """
    widget.comm._reply_subshell_for = None
    for child in getattr(widget, "children", ()):
        keep_order(child)
