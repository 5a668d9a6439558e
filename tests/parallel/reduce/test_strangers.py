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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from herringbone_parallel.reduce.server import Server
from tests.parallel.reduce.conftest import KINDS
from tests.parallel.reduce.hellos import HELLO
from tests.waiting import wait_until

TOKEN = b"right"
LABEL = "the server on algo-3"


@pytest.fixture(params=[kind for kind in KINDS if kind != "mixed"])
def server(request: Any) -> Iterator[Server]:
    server = Server("algo-3", listen("127.0.0.1"), TOKEN, request.param)
    yield server
    server.close()


def joined(server: Server, **change: Any) -> socket.socket:
    """Return the connection of a rank that the server has admitted."""
    address = "127.0.0.1", server.port
    connection, _ = connect(address, LABEL, TOKEN, {**HELLO, **change}, time.monotonic() + 5)
    connection.socket.settimeout(5)
    return connection.socket


def leave(connection: socket.socket) -> None:
    """Leave as a core does, and wait until the server has closed the connection."""
    until = time.monotonic() + 10
    with connection:
        connection.sendall(Header(Kind.LEAVE).pack())
        with connection.makefile("rb") as headers:
            while data := headers.read(LAYOUT.size):
                assert time.monotonic() < until, "the server's core does not end"
                if Header.unpack(data).kind == Kind.LEAVE:
                    connection.sendall(Header(Kind.LEFT).pack())


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


def test_a_refused_hello_costs_its_sender_the_connection_and_nothing_else(server: Server) -> None:
    for change in ({"ring": 0}, {"most": 0}, {"members": 10**9}, {"silence": 1e999}, {"label": "\ud800"}):
        with pytest.raises(ParallelError, match=next(iter(change))):
            joined(server, **change)
    # Nested so deeply that the parser gives up.
    data = b'{"deep": ' + b"[" * 100_000
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        connection = handshake.connect(plain, TOKEN, time.monotonic() + 5)
        sealed = connection.seal(data)
        plain.sendall(struct.pack("<I", len(sealed)) + sealed)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(1) == b""
    leave(joined(server))


def test_a_rank_that_waits_in_vain_can_come_again(server: Server) -> None:
    two = {"members": 2, "join_timeout": 0.2}
    for _ in range(3):
        with pytest.raises(ParallelError, match=r"waited for ranks of all 2 hosts: no rank of hosts \[1\] connected"):
            joined(server, **two)
    assert not server.stats()["running"]


def test_a_listener_goes_on_after_its_descriptors_ran_out() -> None:
    """Regression: 500 silent connections at a limit of 256 descriptors closed the listener for good."""
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
            for _ in range(500):
                strangers.enter_context(socket.create_connection(address, 20))
            for session in "12":
                # Once among the strangers, once after them.
                connection, _ = connect(address, LABEL, TOKEN, {**HELLO, "session": session}, time.monotonic() + 10)
                leave(connection.socket)
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


def test_a_stranger_that_sends_slowly_is_shown_out_as_soon_as_a_silent_one() -> None:
    acceptor = Acceptor([listen("127.0.0.1")], TOKEN, "it", lambda connection, _: None, patience=0.5)
    with socket.create_connection(("127.0.0.1", acceptor.port)) as stranger, contextlib.suppress(OSError):
        for _ in range(40):
            stranger.sendall(b"x")
            time.sleep(0.05)
            if acceptor.refused:
                break
        assert acceptor.refused == 1
    acceptor.close()


def test_a_chunk_of_more_elements_than_bytes_ends_the_session(server: Server) -> None:
    """Regression: with a product of 32 bits, the server summed memory that was not there."""
    connection = joined(server)
    header = Header(Kind.PUSH, Element.FLOAT32, Element.FLOAT32, 4, elements=0x40000001, divisor=1)
    connection.sendall(header.pack() + bytes(4))
    with connection, connection.makefile("rb") as answers:
        answer = answers.read()
    assert b"sent a message of kind 1 and 4 bytes (buffer 0, 1073741825 elements of float32" in answer
    wait_until(lambda: server.stats()["running"] == 0)
    leave(joined(server))


def test_a_lane_that_cannot_start_is_explained_to_all_its_ranks() -> None:
    """A rank that has gone while it waited, for example."""
    server = Server("algo-3", listen("127.0.0.1"), TOKEN, "python")
    offer = {"fabric": {"rail": 0, "provider": "fabric:tcp", "name": "00", "tag": 1}}
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(joined, server, members=2, member=1)
        wait_until(lambda: bool(server._waiting))
        # The answer comes before the rail fails; then the connection ends.
        with joined(server, members=2, member=0, **offer) as first, first.makefile("rb") as answers:
            assert b"the rails of the other end are libfabric's" in answers.read()
        with pytest.raises(ParallelError, match=r"could not start: the rails of the other end are libfabric's"):
            waiting.result()
    server.close()
