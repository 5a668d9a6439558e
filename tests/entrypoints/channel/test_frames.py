"""Messages arrive whole, however the socket cuts them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from herringbone_entry.channel.frames import Wire, WireError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_messages_arrive_whole_and_in_order_however_they_are_cut(pair: Pair) -> None:
    left, right = pair
    wire = Wire(right)
    body = b'{"a": 1}'
    data = (len(body).to_bytes(4, "big") + body) * 3
    messages = []
    for position in range(len(data)):
        left.send(data[position : position + 1])
        messages += wire.receive()
    assert messages == [{"a": 1}] * 3
    left.close()
    with pytest.raises(EOFError):
        wire.receive()


def test_descriptors_travel_with_a_message(pair: Pair) -> None:
    left, right = pair
    reader, writer = os.pipe()
    Wire(left).send({"take": "this"}, (writer,))
    wire = Wire(right)
    assert wire.wait() == {"take": "this"}
    os.write(wire.descriptors[0], b"hello")
    assert os.read(reader, 5) == b"hello"
    for descriptor in (reader, writer, *wire.descriptors):
        os.close(descriptor)


def test_a_rank_that_reads_its_start_message_and_ends_is_no_error(pair: Pair) -> None:
    # An empty send after the message failed with EPIPE when the rank was that quick, and took its supervisor along.
    left, right = pair
    reader, writer = os.pipe()

    class Quick(socket.socket):
        def sendmsg(self, *arguments):
            sent = super().sendmsg(*arguments)
            right.close()
            return sent

    quick = Quick(fileno=left.detach())
    Wire(quick).send({"take": "this"}, (writer,))
    quick.close()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01{"])
def test_bytes_that_are_no_message_are_refused(pair: Pair, data: bytes) -> None:
    left, right = pair
    left.send(data)
    with pytest.raises(WireError):
        Wire(right, limit=100).receive()


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_a_cut_link_is_an_end_and_no_error_of_ours(number: int) -> None:
    """`[Errno 110] Connection timed out` ended a supervisor, and with it a job that had attempts left."""

    def recvmsg(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(EOFError):
        Wire(SimpleNamespace(recvmsg=recvmsg)).receive()
