"""`course check`: a learner's notebooks, graded one by one, whatever they do.

    grade -> kernel, judge -> limits        kernel runs the notebook, judge checks the functions that it defined
    keeper                                  the parent of the processes of both, which takes orphans with it
    report                                  the results as a table, JSON and CSV

[Note: what is trusted]
A notebook runs in a fresh kernel, in a scratch folder, with a record of its own. Nothing that it prints or shows
counts. After the cell of an exercise the kernel is asked for the function that was handed in, packed with the
variables that it uses, and a second process, in which no cell has run, unpacks and checks it. So a notebook that
replaces the checker replaces its own only, and one that ends its parent ends a process of its own. Code of the
notebook runs in both processes: whoever is set on deceiving the second one can. This is a grader for a class, and no
sandbox for strangers' code.
"""

from .grade import grade
from .limits import Limits
from .report import Grade, Graded, as_csv, as_json

__all__ = ["Grade", "Graded", "Limits", "as_csv", "as_json", "grade"]
