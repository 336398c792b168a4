"""Messages through a socket."""

import os
import socket

import pytest

from course_lib.world.processes.framing import Frames, framed
from course_lib.world.processes.worker_handle import ForkServer, WorkerDied
from tests.world.conftest import FarEnd

MESSAGES = ["", ("a tuple", 2), b"x" * 100_000]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096, 10**6])
def test_messages_come_whole_in_whatever_pieces(size: int) -> None:
    stream, frames = b"".join(map(framed, MESSAGES)), Frames()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [message for piece in pieces for message in frames.whole(piece)] == MESSAGES


def test_who_hears_does_not_wait(far_end: FarEnd) -> None:
    process, theirs = far_end.process, far_end.wire
    message = bytes(framed((1, "told")))
    assert process.receive() is None
    theirs.sendall(message[:5])
    assert process.receive() == []
    theirs.sendall(message[5:] + message)
    assert process.receive() == [(1, "told")] * 2
    theirs.sendall(message[:5])
    theirs.close()
    assert process.receive() == []
    assert process.receive() is None


def test_what_a_process_told_is_heard_though_it_ended_before_it_heard_all(far_end: FarEnd) -> None:
    process, theirs = far_end.process, far_end.wire
    process.write(b"unread")
    theirs.sendall(framed((1, "told")))
    theirs.close()
    assert process.receive() == [(1, "told")]
    assert process.receive() is None
    with pytest.raises(WorkerDied):
        process.write(b"more")


def test_a_learners_default_for_sockets_is_not_for_the_courses() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.001)
    try:
        server = ForkServer()
        process = server.spawn()
    finally:
        socket.setdefaulttimeout(before)
    assert process.wire.gettimeout() is None and os.getsid(process.pid) != os.getsid(0)
    process.close()
    server.close()
