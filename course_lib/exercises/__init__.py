"""The course's exercises, and the check that finds out what is wrong with a solution.

exercises.names()                           # of the whole course
exercises.get("ranks.hello").check(hello)   # -> Verdict

registry    -> declare -> check             declare: the shape of an exercise, which a lesson's file fills
check       -> diagnose, compare, unready, guard
compare     -> forms, patterns -> gap       recognise causes: a missing return, a sum for a mean, ...
diagnose, compare, rules -> observe         runs a solution on a case
observe, gap, texts -> plain                results as plain data
"""

from .checking.findings import Finding, Row, Verdict
from .checking.observe import Observation, Trial
from .checking.rules import at_most, holds_no_more, only_calls, same_calls
from .declare import Case, Exercise, Mistake
from .registry import Registry, get, names

__all__ = [
    "Case",
    "Exercise",
    "Finding",
    "Mistake",
    "Observation",
    "Registry",
    "Row",
    "Trial",
    "Verdict",
    "at_most",
    "get",
    "holds_no_more",
    "names",
    "only_calls",
    "same_calls",
]
