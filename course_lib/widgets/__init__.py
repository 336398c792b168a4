"""What the learner sees and clicks.

    cells -> exercise, quiz -> style        what a notebook calls, the widgets, their look
    cells, exercise -> attempt              what an exercise's widget shows and does, without the widget
    cells -> record                         where progress is kept
"""

from .cells import exercise, quiz

__all__ = ["exercise", "quiz"]
