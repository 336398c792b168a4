"""`course check`: grade learners' notebooks one by one, whatever their code does.

    grade -> kernel, judge -> limits        kernel runs the notebook, judge checks the functions that it defined, both
                                            by way of `commands.checker`
    report, classroom                       the results as a table, JSON and CSV; for a gradebook, and as a page

[Note: what is trusted]
A notebook runs in a fresh kernel, in a scratch folder, with its own record. Nothing that it prints or shows counts.
After the cell of an exercise the kernel is asked for the function that was handed in, packed with the variables that it
uses. A second process, in which no cell has run, unpacks and checks it. So a notebook that replaces the checker
replaces only its own copy. Code of the notebook runs in both processes, so code written to deceive the second process
can. This is a grader for a class, not a sandbox for strangers' code.
"""

from .classroom import as_gradebook, as_page
from .grade import grade
from .limits import Limits
from .report import Grade, Graded, as_csv, as_json, from_json

__all__ = ["Grade", "Graded", "Limits", "as_csv", "as_gradebook", "as_json", "as_page", "from_json", "grade"]
