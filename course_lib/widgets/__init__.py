"""What the learner sees and clicks.

    cells -> exercise, prediction, quiz -> style    what a notebook calls, the widgets, their look
    exercise -> attempt;  prediction -> guess       what these widgets show and do, without the widget
    cells -> record                                 where progress is kept
"""

from .cells import exercise, predict, quiz

__all__ = ["exercise", "predict", "quiz"]
