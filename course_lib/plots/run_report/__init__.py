"""The page of a run.

record     what is shown; what equal ranks held, sent and waited for, in words
sections   the page's sections, each as HTML and as text
page       `RunReport`: the page
"""

from .page import RunReport

__all__ = ["RunReport"]
