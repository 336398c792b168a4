"""Messages through a socket, which knows only bytes: each is pickled, and comes after its length.

`multiprocessing.connection` does the same, and can only wait for the whole of one.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def framed(message: object) -> memoryview:
    """`message` as it is sent."""
    stream = io.BytesIO(bytes(_LENGTH.size))
    stream.seek(_LENGTH.size)
    pickle.dump(message, stream)
    data = stream.getbuffer()
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return data


class Frames:
    """Messages as they arrive, in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def in_midst(self) -> bool:
        """Whether there is a part of a message."""
        return bool(self._data)

    def whole(self, data: bytes) -> list[Any]:
        """The messages of which `data` was the last piece."""
        self._data += data
        messages = []
        while (end := self._end()) is not None:
            message = self._data[_LENGTH.size : end]
            del self._data[:end]
            messages.append(pickle.loads(message))
        return messages

    def _end(self) -> int | None:
        """Where the first message ends, if it is all there."""
        if len(self._data) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._data)[0])
        return end if end <= len(self._data) else None
