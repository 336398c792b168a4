"""The page of a run.

record     `RunRecord`: what is shown
sections   the page's sections, each as HTML and as text
program    the lines that ranks printed, with equal lines of ranks folded
page       `RunReport`: the page
"""

from .page import RunReport
from .record import RunRecord

__all__ = ["RunRecord", "RunReport"]
