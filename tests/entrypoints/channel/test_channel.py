"""The control channel: connecting and heartbeats, none of which may block."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from herringbone_entry.channel.address import UnixAddress
from herringbone_entry.channel.channel import Connector, Link
from herringbone_entry.channel.frames import Wire
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.event_loop import Loop


def test_a_full_queue_of_connections_does_not_block_the_connector(tmp_path: Path, monkeypatch) -> None:
    # A blocking connect waits until a full queue of strangers moves; a stopped first host never moves it.
    monkeypatch.chdir(tmp_path)
    loop, ends = Loop(), []
    loop.later(0.2, lambda: loop.stop(7))
    with listen("socket", 0), contextlib.ExitStack() as clients:
        for _ in range(3):
            stranger = clients.enter_context(socket.socket(socket.AF_UNIX))
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect("socket")
        Connector(
            UnixAddress("socket"), b"key", "algo-2", loop, on_join=ends.append, on_gone=lambda: ends.append("gone")
        )
        assert loop.run() == 7
    assert ends == []


def linked_hosts(loop: Loop, lost: list[str]) -> list[Link]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return [
        Link(
            Wire(end),
            loop,
            heartbeat=0.05,
            on_message=lambda _: None,
            on_lost=lambda why, name=name: lost.append((name, why)),
        )
        for name, end in zip(("algo-1", "algo-2"), ends, strict=True)
    ]


def test_a_machine_that_was_suspended_has_lost_no_host() -> None:
    # Both hosts woke after longer than three heartbeats. Each declared the other lost before a heartbeat could arrive.
    loop, lost = Loop(), []
    links = linked_hosts(loop, lost)
    for link in links:
        link.watch()
    loop.later(0.1, lambda: time.sleep(0.5))
    loop.later(1.0, lambda: loop.stop(0))
    loop.run()
    assert lost == []
    for link in links:
        link.close()


def test_a_silent_host_is_lost_after_three_heartbeats() -> None:
    loop, lost = Loop(), []
    first, _ = linked_hosts(loop, lost)
    first.watch()
    loop.later(0.12, lambda: lost.append("two beats"))
    loop.later(0.5, lambda: loop.stop(0))
    loop.run()
    # The other host notices by the end of its link.
    assert lost == ["two beats", ("algo-1", "silent for 3 heartbeats of 0.05 s"), ("algo-2", "")]
