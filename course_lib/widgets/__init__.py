"""The widgets of the course, and the functions that notebooks call.

cells                                       `exercise`, and what a notebook calls for an exercise
exercise_widget, quiz_widget, prediction    the widgets
planner/, world_picker                      the planner, and the choice of a world
map, scores                                 tables of the learner's progress, which need no kernel
attempt                                     the logic of exercises, without widgets
card                                        how a click in the browser becomes a call in Python
ranks_magic                                 `%%ranks 4`, which runs a cell as a program
style, static/                              the HTML that all are made of, its look, and the browser's side of a card
"""

from .cells import exercise, load_later
from .map import course_map
from .planner.widget import show_planner
from .prediction import predict
from .quiz_widget import quiz
from .scores import my_results, scoreboard
from .world_picker import choose_world

load_later()

__all__ = ["choose_world", "course_map", "exercise", "my_results", "predict", "quiz", "scoreboard", "show_planner"]
