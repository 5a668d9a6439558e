"""A peer that has not proved itself costs its own connection and nothing else."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from herringbone_entry.channel.acceptor import Acceptor
from herringbone_entry.channel.address import UnixAddress
from herringbone_entry.channel.channel import Connector, Listener
from herringbone_entry.channel.frames import Wire
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.event_loop import Loop

KEY = b"key of the job"
CHALLENGE = "0" * 64


def frame(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(4, "big") + body


BAD = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "nested": frame("[" * 2_000),
    "nested in an object": frame('{"host":' + "[" * 1_500 + "]" * 1_500 + "}"),
    "surrogate host": frame('{"host": "\\ud800", "challenge": "x", "proof": "x"}'),
    "surrogate challenge": frame('{"host": "algo-2", "challenge": "\\ud800", "proof": "x"}'),
    "surrogate proof": frame(json.dumps({"host": "algo-2", "challenge": CHALLENGE, "proof": "\ud800"})),
    "no texts": frame('{"host": {}, "challenge": [], "proof": null}'),
    "surrogate bytes": b'\x00\x00\x00\x07"\xed\xa0\x80"{}',
    "utf-16": b"\x00\x00\x00\x06" + '"a"'.encode("utf-16-le"),
    "huge number": frame('{"host": ' + "9" * 4_000 + "}"),
    "number": frame("1"),
    "empty": b"\x00\x00\x00\x00",
    "too long": b"\xff\xff\xff\xff",
}


def join(loop: Loop, folder: Path, strangers: Callable[[], object]) -> list[str]:
    """Let `strangers` come to a listener before the job's own host; return who has joined."""
    address = UnixAddress(str(folder / "control"))
    joined: list[str] = []
    listen_for_host(address, loop, joined)
    strangers()
    # A turn for the strangers, whose bytes wait in the sockets.
    loop.later(0.05, lambda: connect(address, loop, joined))
    loop.later(10.0, lambda: loop.stop(1))
    assert loop.run() == 0
    return joined


def listen_for_host(address: UnixAddress, loop: Loop, joined: list[str]) -> None:
    def join(name: str, wire: Wire) -> None:
        joined.append(name)
        wire.close()

    Listener(address, KEY, ["algo-2"], loop, join)


def connect(address: UnixAddress, loop: Loop, joined: list[str]) -> Connector:
    def join(wire: Wire) -> None:
        joined.append("connector")
        wire.close()
        # The first host hears of the proof later than this side sends it.
        loop.later(0.05, lambda: loop.stop(0))

    return Connector(address, KEY, "algo-2", loop, on_join=join, on_gone=lambda: joined.append("gone"))


@pytest.mark.parametrize("data", list(BAD.values()), ids=list(BAD))
def test_bad_bytes_before_the_proof_cost_the_connection_alone(tmp_path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:

        def come() -> None:
            stranger.connect(str(tmp_path / "control"))
            stranger.send(data)

        assert sorted(join(Loop(), tmp_path, come)) == ["algo-2", "connector"]
        stranger.settimeout(1.0)
        # The challenge, then the end.
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


def test_a_host_that_is_shown_out_tries_again(tmp_path: Path) -> None:
    # 70 silent connections during the handshake drove out the host's, which took that for the end of the job.
    loop = Loop()
    address = UnixAddress(str(tmp_path / "control"))
    joined: list[str] = []
    with contextlib.ExitStack() as stack:
        # The port of the first host, before the supervisor has it: every connection ends at once.
        first = stack.enter_context(listen(address.path, 16))

        def show_out() -> None:
            connection, _ = first.accept()
            connection.close()

        loop.read(first.fileno(), show_out)
        connect(address, loop, joined)

        def come_up() -> None:
            loop.forget(first.fileno())
            Path(address.path).unlink()
            listen_for_host(address, loop, joined)

        loop.later(0.3, come_up)
        loop.later(10.0, lambda: loop.stop(1))
        assert loop.run() == 0
    assert sorted(joined) == ["algo-2", "connector"]


@pytest.mark.parametrize("data", list(BAD.values()), ids=list(BAD))
def test_a_false_first_host_costs_an_attempt_alone(tmp_path: Path, data: bytes) -> None:
    loop = Loop()
    address = UnixAddress(str(tmp_path / "control"))
    joined: list[str] = []
    with listen(address.path, 16) as first:
        clients = []

        def send(client: socket.socket) -> None:
            with contextlib.suppress(OSError):
                client.send(data)

        def answer() -> None:
            clients.append(first.accept()[0])
            send(clients[-1])
            # Once as a challenge, and once as a proof.
            loop.later(0.02, lambda client=clients[-1]: send(client))

        def stop_if_refused() -> None:
            # Before the next attempt begins.
            if connector.times_refused == 2:
                loop.stop(0)
            loop.later(0.01, stop_if_refused)

        loop.read(first.fileno(), answer)
        connector = connect(address, loop, joined)
        stop_if_refused()
        loop.later(10.0, lambda: loop.stop(1))
        assert loop.run() == 0
        assert joined == []
        for client in clients:
            client.close()


def test_hundreds_of_open_connections_delay_nobody(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def come() -> None:
            for _ in range(200):
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
                stranger.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    stranger.connect(str(tmp_path / "control"))

        assert sorted(join(Loop(), tmp_path, come)) == ["algo-2", "connector"]


@pytest.mark.parametrize("data", list(BAD.values()), ids=list(BAD))
def test_bad_hellos_of_ranks_and_agents_cost_their_connection_alone(tmp_path: Path, data: bytes) -> None:
    loop, hellos = Loop(), []

    def take(_wire: Wire, message: dict[str, object]) -> None:
        hellos.append(message)
        raise TypeError("the receiver of a hello trusts no member of it")

    acceptor = Acceptor(str(tmp_path / "host.sock"), 4, loop, take)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "host.sock"))
        stranger.send(data)
        loop.later(0.1, lambda: loop.stop(0))
        assert loop.run() == 0
        acceptor.close()
        # The receiver's exception ended the connection.
        assert not hellos or stranger.recv(1) == b""
