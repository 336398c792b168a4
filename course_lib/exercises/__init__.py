"""The course's exercises, and the check that finds out what is wrong with a solution.

exercises.names()                           # of the whole course
exercises.get("ranks.hello").check(hello)   # -> Verdict

evidence    -> registry, check              what production shows of an incident's program
registry    -> lessons -> check             finds course_lib/lessons/<lesson>/<exercise>.py by the name of the exercise
check       -> diagnose, compare             a declaration that can be checked
compare     -> forms, patterns -> plain     recognise causes: a missing return, a sum for a mean, ...
check, diagnose -> cases -> observe         runs a solution on a case, and keeps the results of the course's own
compare, rules -> observe
observe, failures -> declaration            what a lesson's file says: edits of the reference, and prose
observe, texts -> plain                     results as plain data
"""

from .checking.cases import DTYPES, draw_world_size, dtype_name, normal, whole_numbers
from .checking.check import Exercise
from .checking.findings import Finding, Row, Verdict
from .checking.observe import Observation, Trial
from .checking.rules import Rule, at_most, byte_rows, holds_no_more, lets_go, only_calls, same_calls, sends_no_more
from .evidence import Incident, incident
from .form.declaration import Case, Mistake, Solution
from .registry import get, names

__all__ = [
    "DTYPES", "Case", "Exercise", "Finding", "Incident", "Mistake", "Observation", "Row", "Rule", "Solution",
    "Trial", "Verdict", "at_most", "byte_rows", "draw_world_size", "dtype_name", "get", "holds_no_more", "incident",
    "lets_go", "names", "normal", "only_calls", "same_calls", "sends_no_more", "whole_numbers",
]  # fmt: skip
