"""The feedback on one answer."""

from dataclasses import dataclass
from typing import Literal

HEADLINES = {"right": "✓ Right.", "wrong": "✗ Not yet.", "unread": "Not marked."}


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """A mark and its reason.

    `status` is "unread" if the answer could not be understood, so that nothing was marked. `message` is one sentence or
    several, a line each. `reading` is the meaning of the answer, in words.
    """

    status: Literal["right", "wrong", "unread"]
    message: str
    reading: str = ""

    @property
    def correct(self) -> bool:
        return self.status == "right"

    @property
    def headline(self) -> str:
        return HEADLINES[self.status]

    def __str__(self) -> str:
        return f"{self.headline} {self.message}"
