"""Listeners and servers among strangers: without the token nobody ends them, and with it no number harms them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.join import handshake, listener
from herringbone_parallel.reduce.join.handshake import RefusedError
from herringbone_parallel.reduce.join.lane_hello import LaneHello
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from herringbone_parallel.reduce.join.rendezvous import RankInfo
from herringbone_parallel.reduce.server import Server
from tests.parallel.reduce.conftest import KINDS

TOKEN = b"right"
LABEL = "the server on algo-3"
HELLO = {
    "session": "1f",
    "lane": 0,
    "server": 0,
    "member": 0,
    "members": 1,
    "chunk_bytes": 4096,
    "ring": 16384,
    "most": 32,
    "silence": 3.5,
    "late": 60.0,
    "join_timeout": 5.0,
    "label": "rank 0 on a",
    "fabric": None,
}


@pytest.fixture(params=[kind for kind in KINDS if kind != "mixed"])
def server(request: Any) -> Iterator[Server]:
    server = Server("algo-3", listen("127.0.0.1"), TOKEN, request.param)
    yield server
    server.close()


def joined(server: Server, **change: Any) -> socket.socket:
    """Return the connection of a rank that the server has admitted."""
    address = "127.0.0.1", server.port
    connection, _ = connect(address, LABEL, TOKEN, {**HELLO, **change}, time.monotonic() + 5)
    connection.settimeout(5)
    return connection


def leave(connection: socket.socket) -> None:
    """Leave as a core does, and wait until the server has closed the connection."""
    with connection:
        connection.sendall(Header(Kind.LEAVE).pack())
        with connection.makefile("rb") as headers:
            while data := headers.read(LAYOUT.size):
                if Header.unpack(data).kind == Kind.LEAVE:
                    connection.sendall(Header(Kind.LEFT).pack())


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_fifty_sessions_leave_nothing_behind(server: Server) -> None:
    """Regression: each finished session kept three descriptors, and its memory."""
    leave(joined(server))
    wait_until(lambda: server.stats()["running"] == 0)
    before, threads = descriptors(), threading.active_count()
    for number in range(50):
        leave(joined(server, session=f"{number}"))
    wait_until(lambda: server.stats()["running"] == 0)
    wait_until(lambda: descriptors() <= before)
    wait_until(lambda: threading.active_count() <= threads)
    assert server.stats()["ended"] == 51
    assert server.stats()["received_bytes"] == 51 * 2 * LAYOUT.size


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ring": 0}, "ring is 0"),
        ({"ring": 1 << 32}, "ring is 4294967296"),
        ({"ring": 4095}, "chunk_bytes is 4096: it is a number from 1 to 4095"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"chunk_bytes": 4096.0}, "chunk_bytes is 4096.0"),
        ({"most": 0}, "most is 0"),
        ({"most": 1 << 32 | 1}, "most is 4294967297"),
        ({"members": 0}, "members is 0"),
        ({"members": 1_000_000_000}, "members is 1000000000"),
        ({"members": True}, "members is True"),
        ({"member": 1}, "member is 1: it is a number from 0 to 0"),
        ({"member": -1}, "member is -1"),
        ({"lane": 1e999}, "lane is inf"),
        ({"lane": "0"}, "lane is '0'"),
        ({"server": None}, "server is NoneType"),
        ({"silence": float("nan")}, "silence is nan"),
        ({"late": 0}, "late is 0"),
        ({"join_timeout": 1e300}, r"join_timeout is 1e\+300"),
        ({"label": "\ud800"}, "label is"),
        ({"label": "a\x1b[2J"}, "label is"),
        ({"session": ["1f"]}, "session is list"),
        ({"session": "x" * 10_000}, "session is str"),
        ({"fabric": [1]}, "the offer of a rail is list"),
    ],
    ids=str,
)
def test_numbers_that_no_rank_sends_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ParallelError, match=named):
        LaneHello.of({**HELLO, **change})


def test_a_refused_hello_costs_its_sender_the_connection_and_nothing_else(server: Server) -> None:
    for change in ({"ring": 0}, {"most": 0}, {"members": 10**9}, {"silence": 1e999}, {"label": "\ud800"}):
        with pytest.raises(ParallelError, match=next(iter(change))):
            joined(server, **change)
    # Nested so deeply that the parser gives up.
    data = b'{"deep": ' + b"[" * 100_000
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        connection = handshake.connect(plain, TOKEN, time.monotonic() + 5)
        plain.sendall(struct.pack("<I", len(data)) + handshake._mac(connection._own_key, 0, data) + data)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(1) == b""
    leave(joined(server))


def test_a_rank_that_waits_in_vain_can_come_again(server: Server) -> None:
    two = {"members": 2, "join_timeout": 0.2}
    for _ in range(3):
        with pytest.raises(ParallelError, match=r"waited for ranks of all 2 hosts: no rank of hosts \[1\] connected"):
            joined(server, **two)
    assert not server.stats()["running"]


RANK = {
    "rank": 0,
    "size": 2,
    "host": "a",
    "addresses": [["10.0.0.5", 7601]],
    "local_path": "/tmp/s",
    "agreed": {},
    "job_rank": None,
}


def test_the_info_of_a_rank() -> None:
    assert RankInfo.of(RANK) == RankInfo(0, 2, "a", (("10.0.0.5", 7601),), "/tmp/s", {}, None)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 2},
        {"rank": -1},
        {"size": 10**9},
        {"size": 2.0},
        {"host": "a\nb"},
        {"addresses": []},
        {"addresses": [["10.0.0.5", 0]]},
        {"addresses": [["10.0.0.5"]]},
        {"addresses": {"10.0.0.5": 1}},
        {"agreed": []},
        {"job_rank": "0"},
    ],
    ids=str,
)
def test_the_info_of_a_rank_that_no_rank_sends(change: dict[str, Any]) -> None:
    with pytest.raises((ParallelError, ValueError)):
        RankInfo.of({**RANK, **change})


def test_a_listener_goes_on_after_its_descriptors_ran_out() -> None:
    """Regression: 300 silent connections at a limit of 256 descriptors closed the listener for good."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["bash", "-c", 'ulimit -n 256 && exec "$0" -m herringbone_parallel.reduce.server', sys.executable]
    reads, writes = os.pipe()
    os.write(writes, TOKEN)
    os.close(writes)
    environment = {
        **os.environ,
        "HERRINGBONE_REDUCE": "python",
        ReduceVariable.HOST: "algo-3",
        ReduceVariable.TOKEN_FILE: f"/dev/fd/{reads}",
    }
    with (
        contextlib.ExitStack() as strangers,
        subprocess.Popen(command, env=environment, pass_fds=[reads], stdout=subprocess.PIPE, text=True) as process,
    ):
        os.close(reads)
        assert process.stdout is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        try:
            address = "127.0.0.1", json.loads(process.stdout.readline())["port"]
            for _ in range(300):
                strangers.enter_context(socket.create_connection(address))
            for session in "12":
                # Once among the strangers, once after them.
                connection, _ = connect(address, LABEL, TOKEN, {**HELLO, "session": session}, time.monotonic() + 10)
                leave(connection)
                strangers.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            process.terminate()


def test_a_listener_goes_on_after_its_threads_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(connection: Any, _: dict[str, Any]) -> None:
        connection.send({})
        connection.close()

    acceptor = Acceptor([listen("127.0.0.1")], TOKEN, "it", admit)
    start, failures = threading.Thread.start, iter(range(3))

    def start_rarely(thread: threading.Thread) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_rarely)
    connection, _ = connect(("127.0.0.1", acceptor.port), "it", TOKEN, {}, time.monotonic() + 10)
    connection.close()
    acceptor.close()
    assert next(failures, None) is None


def test_a_stranger_that_sends_slowly_is_shown_out_as_soon_as_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HANDSHAKE_SECONDS", 0.5)
    acceptor = Acceptor([listen("127.0.0.1")], TOKEN, "it", lambda connection, _: None)
    with socket.create_connection(("127.0.0.1", acceptor.port)) as stranger, contextlib.suppress(OSError):
        for _ in range(40):
            stranger.sendall(b"x")
            time.sleep(0.05)
            if acceptor.refused:
                break
        assert acceptor.refused == 1
    acceptor.close()


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


F32, F16, I32 = Element.FLOAT32, Element.FLOAT16, Element.INT32


@pytest.mark.parametrize(
    ("header", "local", "expected"),
    [
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=2), False, True),
        (Header(Kind.PUSH, F32, F32, 0, elements=64, divisor=2), True, True),
        (Header(Kind.PUSH, F32, F32, 4, elements=0x40000001, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 0, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 0, elements=0, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=2), True, False),
        # The host's sum of 16 bits travels as fp32, and its sum comes back in 16 bits.
        (Header(Kind.PUSH, F16, F32, 256, elements=64, divisor=2), False, True),
        (Header(Kind.SUM, F16, F32, 128, elements=64, divisor=2), False, True),
        (Header(Kind.SUM, F16, F32, 256, elements=64, divisor=2), False, False),
        (Header(Kind.SUM, F32, F16, 128, elements=64, divisor=2), False, True),
        (Header(Kind.PUSH, F16, Element.BFLOAT16, 128, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, I32, F32, 256, elements=64, divisor=1), False, False),
        (Header(Kind.PUSH, I32, I32, 256, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, I32, I32, 256, elements=64, divisor=1), False, True),
        (Header(Kind.PUSH, 8, 8, 64, elements=64, divisor=1), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=float("nan")), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=0), False, False),
        (Header(Kind.ALIVE), False, True),
        (Header(Kind.ALIVE, length=1), True, False),
        (Header(Kind.LEAVE, sequence=2**64 - 1), False, True),
        (Header(Kind.ABORT, length=65536), False, True),
        (Header(Kind.ABORT, length=65537), False, False),
        (Header(0), False, False),
        (Header(7), False, False),
    ],
    ids=str,
)
def test_headers_whose_sizes_fit_each_other(header: Header, local: bool, expected: bool) -> None:
    assert header.is_well_formed(local=local) is expected


def test_a_chunk_of_more_elements_than_bytes_ends_the_session(server: Server) -> None:
    """Regression: with a product of 32 bits, the server summed memory that was not there."""
    connection = joined(server)
    header = Header(Kind.PUSH, F32, F32, 4, elements=0x40000001, divisor=1)
    connection.sendall(header.pack() + bytes(4))
    with connection, connection.makefile("rb") as answers:
        answer = answers.read()
    assert b"sent a message of kind 1 and 4 bytes (buffer 0, 1073741825 elements of float32" in answer
    wait_until(lambda: server.stats()["running"] == 0)
    leave(joined(server))
