"""The one family of errors that is meant for readers, and how to tell them of a broken file."""

import json


class CourseError(Exception):
    """Something the reader can put right.

    The text says, in this order: what happened, with the values; why; and what to do next.
    """


def json_trouble(error: BaseException) -> str:
    """Why a file of JSON is not what it should be, in words; `error` is what reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text from byte {error.start} on"
    return f"{error} is not in it" if isinstance(error, KeyError) else str(error)
