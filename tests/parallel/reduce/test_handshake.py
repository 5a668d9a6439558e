"""What a process that sits between two hosts can do while they join: nothing but break the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.handshake import RefusedError
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from tests.waiting import wait_until

TOKEN = b"right"


class Between:
    """A process between two hosts: it keeps the bytes and passes them on to `target`, through `change` on the way."""

    def __init__(self, target: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self._target, self._change = target, change
        self._socket = listen("127.0.0.1")
        self.address = self._socket.getsockname()[:2]
        self.sent = b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        caller, _ = self._socket.accept()
        with caller, socket.create_connection(("127.0.0.1", self._target)) as callee:
            back = threading.Thread(target=self._copy, args=(callee, caller))
            back.start()
            self._copy(caller, callee, self._keep)
            back.join()

    def _keep(self, data: bytes) -> bytes:
        self.sent += data
        return self._change(data)

    def _copy(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(change(data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


def test_a_hello_that_was_changed_on_its_way_is_refused() -> None:
    """Regression: who sat between two hosts let them prove themselves, and then spoke in their name."""
    hellos: list[dict[str, Any]] = []

    def admit(connection: Any, hello: dict[str, Any]) -> None:
        hellos.append(hello)
        connection.send({"to": "10.0.0.5"})

    acceptor = Acceptor([listen("127.0.0.1")], TOKEN, "it", admit)
    between = Between(acceptor.port, lambda data: data.replace(b"rank-1", b"rank-2"))
    with pytest.raises(ParallelError, match="did not answer"):
        connect(between.address, "it", TOKEN, {"name": "rank-1"}, time.monotonic() + 5)
    between.close()
    assert not hellos
    assert acceptor.refused == 1
    # Bytes of another connection are no proof: the acceptor's nonce is another one.
    with socket.create_connection(("127.0.0.1", acceptor.port)) as again:
        again.sendall(between.sent)
        with contextlib.suppress(ConnectionResetError):
            while again.recv(4096):
                continue
    wait_until(lambda: acceptor.refused == 2)
    assert not hellos
    acceptor.close()


def test_a_connection_that_was_led_to_another_process_is_refused() -> None:
    def admit(connection: Any, _: dict[str, Any]) -> None:
        connection.send({})

    two = Acceptor([listen("127.0.0.1")], TOKEN, "rank 2 on c", admit)
    between = Between(two.port)
    with pytest.raises(ParallelError, match="this is rank 2 on c, and the connection was meant for rank 1 on b"):
        connect(between.address, "rank 1 on b", TOKEN, {}, time.monotonic() + 5)
    between.close()
    two.close()


def test_messages_are_bound_to_their_number_side_and_connection() -> None:
    until = time.monotonic() + 5

    def pair() -> tuple[Any, Any]:
        ends = socket.socketpair()
        accepted: list[Any] = []
        thread = threading.Thread(target=lambda: accepted.append(handshake.accept(ends[0], TOKEN, until)))
        thread.start()
        connected = handshake.connect(ends[1], TOKEN, until)
        thread.join()
        return accepted[0], connected

    def raw(message: dict[str, Any], sender: Any, receiver: Any) -> bytes:
        sender.send(message)
        return bytes(receiver.socket.recv(4096))

    one, other = pair()
    data = raw({"n": 1}, one, other)
    other.socket.sendall(data)  # back to its sender
    with pytest.raises(ParallelError, match="changed on its way"):
        one.receive(until)
    one.socket.sendall(data + data)  # twice
    assert other.receive(until) == {"n": 1}
    with pytest.raises(ParallelError, match="changed on its way"):
        other.receive(until)
    third, fourth = pair()
    third.socket.sendall(data)  # on another connection
    with pytest.raises(ParallelError, match="changed on its way"):
        fourth.receive(until)
    for end in (one, other, third, fourth):
        end.close()


def test_the_version_is_a_part_of_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version cannot be put into the greeting on its way."""
    ends = socket.socketpair()
    until = time.monotonic() + 5
    greeting = handshake._HELLO.pack(handshake._MAGIC, handshake.VERSION, bytes(32))
    transcripts = [greeting + bytes(32), greeting.replace(bytes([handshake.VERSION]), b"\x02", 1) + bytes(32)]
    proofs = {handshake._derive(TOKEN, b"connects", transcript) for transcript in transcripts}
    assert len(proofs) == 2
    ends[0].sendall(bytes(len(greeting)))
    with pytest.raises(RefusedError, match="does not belong to a Herringbone job"):
        handshake.connect(ends[1], TOKEN, until)
    for end in ends:
        end.close()
