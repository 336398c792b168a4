"""The one family of errors that is meant for readers."""


class CourseError(Exception):
    """Something the reader can put right.

    The text says, in this order: what happened, with the values; why; and what to do next.
    """
