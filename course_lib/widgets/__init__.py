"""What the learner sees and clicks.

cells                                             what a notebook calls, of
exercise_widget, quiz_widget, prediction, map     the widgets, and of `record`, where progress is kept
planner_widget                                    the planner's
world_picker                                      where ranks live
attempt, guess                                    what the exercise's and the prediction's show and do
style, number_field                               the look of all of them, and a field that two have
message_order                                     no click overtakes what was typed before it
"""

from .cells import choose_world, course_map, exercise, predict, quiz
from .planner_widget import show_planner

__all__ = ["choose_world", "course_map", "exercise", "predict", "quiz", "show_planner"]
