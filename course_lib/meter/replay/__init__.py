"""The replay of a run: a film of what every rank held, sent and waited for, as one page. It reads records, and
imports nothing.

    record   the events of a rank: calls, marks and its end
    steps    at which step of the film each event happens
    words    the film in sentences: the captions, the text form
    page     `Replay`: the film as a page, with the script and the style of `static`
"""

from .page import Replay
from .record import Film, film

__all__ = ["Film", "Replay", "film"]
