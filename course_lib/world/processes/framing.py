"""Framing: messages through a socket, each pickled and preceded by its length.

`multiprocessing.connection` does the same, but blocks until a message is complete.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def framed(message: object) -> memoryview:
    """Return the bytes to send for `message`."""
    stream = io.BytesIO(bytes(_LENGTH.size))
    stream.seek(_LENGTH.size)
    pickle.dump(message, stream)
    data = stream.getbuffer()
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return data


class Frames:
    """A buffer that turns received bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def incomplete(self) -> bool:
        """Return whether a message has arrived only in part."""
        return bool(self._data)

    def whole(self, data: bytes) -> list[Any]:
        """Return the messages that `data` completes."""
        self._data += data
        messages = []
        while (end := self._end()) is not None:
            message = self._data[_LENGTH.size : end]
            del self._data[:end]
            messages.append(pickle.loads(message))
        return messages

    def _end(self) -> int | None:
        """Return the end of the first message, if it is complete."""
        if len(self._data) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._data)[0])
        return end if end <= len(self._data) else None
