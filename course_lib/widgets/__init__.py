"""What the learner sees and clicks.

    cells -> exercise, map, prediction, quiz -> style    what a notebook calls, the widgets, their look
    exercise -> attempt;  prediction -> guess            what these widgets show and do, without the widget
    cells -> record                                      where progress is kept
"""

from .cells import course_map, exercise, predict, quiz

__all__ = ["course_map", "exercise", "predict", "quiz"]
