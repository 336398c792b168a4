"""The widgets of the course, and the functions that notebooks call.

cells                                             the functions that a notebook calls
exercise_widget, quiz_widget, prediction, map     the widgets; `record` holds the learner's progress
planner_widget                                    the planner's
world_picker                                      the choice of a world
attempt, guess                                    the logic of exercises and predictions, without widgets
style, number_field                               the common look, and a field that two widgets use
message_order                                     keeps a click from overtaking what was typed before it
"""

from .cells import choose_world, course_map, exercise, predict, quiz
from .planner_widget import show_planner

__all__ = ["choose_world", "course_map", "exercise", "predict", "quiz", "show_planner"]
