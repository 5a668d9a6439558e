"""Frames between hosts: whoever sits on the path can end a link, and can say nothing in a host's name."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from herringbone_contract.channel.session import MAC_BYTES, SealError, session
from herringbone_entry.channel.address import UnixAddress
from herringbone_entry.channel.channel import Connector, Link, Listener
from herringbone_entry.channel.frames import Wire
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.event_loop import Loop

SPAWN = b'{"kind": "spawn"}'


def pair():
    return session(b"key", "algo-2", "a", "b", is_first=True), session(b"key", "algo-2", "a", "b")


def test_both_directions_carry_every_body_in_order() -> None:
    first, host = pair()
    bodies = [b"", b"{}", bytes(range(256)) * 1_000]
    assert [host.open(first.seal(body)) for body in bodies] == bodies
    assert [first.open(host.seal(body)) for body in bodies] == bodies


def flipped(frame: bytes, index: int) -> bytes:
    return frame[:index] + bytes([frame[index] ^ 1]) + frame[index + 1 :]


def test_a_frame_that_was_changed_made_moved_or_sent_back_is_refused() -> None:
    first, host = pair()
    one, two = first.seal(b"one"), first.seal(b"two")
    strangers = session(b"another key", "algo-2", "a", "b", is_first=True).seal(b"one")
    earlier = session(b"key", "algo-2", "a", "earlier", is_first=True).seal(b"one")
    another = session(b"key", "algo-3", "a", "b", is_first=True).seal(b"one")
    wrong = [flipped(one, index) for index in range(len(one))]
    wrong += [two, one[:-1], one + b"x", one[:MAC_BYTES], b"", SPAWN, strangers, earlier, another, host.seal(b"one")]
    for frame in wrong:
        with pytest.raises(SealError, match="that the other host did not send"):
            pair()[1].open(frame)
    assert [host.open(one), host.open(two)] == [b"one", b"two"]
    with pytest.raises(SealError):
        host.open(two)


class Relay:
    """Sits between two hosts: passes all bytes on, and after both proofs speaks in the name of each."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self._loop = loop
        self._listener = listen(str(folder / "seen"), 4)
        self._behind = str(folder / "control")
        self.ends: list[socket.socket] = []
        loop.read(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        host = self._listener.accept()[0]
        first = socket.socket(socket.AF_UNIX)
        first.connect(self._behind)
        self.ends = [host, first]
        self._pass(host, first)
        self._pass(first, host)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        def move() -> None:
            data = source.recv(65_536)
            if data:
                target.send(data)
            else:
                self._loop.forget(source.fileno())

        self._loop.read(source.fileno(), move)

    def close(self) -> None:
        for end in (*self.ends, self._listener):
            end.close()


def linked(folder: Path, loop: Loop, took: list[object]) -> dict[str, Link]:
    """Connect two hosts through a relay; `took` gets the messages and the reasons of losses."""
    links: dict[str, Link] = {}

    def link(name: str) -> Callable[[Wire], None]:
        def join(wire: Wire) -> None:
            links[name] = Link(
                wire, loop, heartbeat=5.0, on_message=took.append, on_lost=lambda why: took.append((name, why))
            )
            # A frame right behind the proof: it arrived with the proof, and was dropped.
            links[name].send({"kind": "from", "name": name})

        return join

    Listener(UnixAddress(str(folder / "control")), b"key", ["algo-2"], loop, lambda _, wire: link("algo-1")(wire))
    seen = UnixAddress(str(folder / "seen"))
    Connector(seen, b"key", "algo-2", loop, on_join=link("algo-2"), on_gone=lambda: took.append("gone"))
    return links


@pytest.mark.parametrize("target", [0, 1], ids=["to the host", "to the first host"])
@pytest.mark.parametrize("sealed", [False, True], ids=["bare", "with a MAC"])
def test_who_waits_for_the_proofs_says_nothing_in_a_host_s_name(tmp_path: Path, target: int, sealed: bool) -> None:
    # A relay passed the proofs on, and then sent `spawn`, which ran a shell command on the other host.
    loop, took = Loop(), []
    relay = Relay(tmp_path, loop)
    links = linked(tmp_path, loop, took)
    body = bytes(MAC_BYTES) + SPAWN if sealed else SPAWN
    loop.later(0.2, lambda: relay.ends[target].send(len(body).to_bytes(4, "big") + body))
    loop.later(0.4, lambda: loop.stop(0))
    loop.run()
    relay.close()
    for link in links.values():
        link.close()
    assert sorted(message["name"] for message in took if isinstance(message, dict)) == ["algo-1", "algo-2"]
    (lost,) = [loss for loss in took if isinstance(loss, tuple) and loss[1]]
    assert lost[0] == ("algo-2", "algo-1")[target]
    assert "a frame that the other host did not send" in lost[1]
