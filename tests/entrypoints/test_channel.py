"""The control channel's first steps, where a step may wait for another process."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from herringbone_entry.channel import Knock
from herringbone_entry.listener import listen
from herringbone_entry.loop import Loop


def test_a_crowd_before_the_door_does_not_stop_the_one_who_knocks(tmp_path: Path, monkeypatch) -> None:
    # A blocking connect waits until a full queue of strangers moves; a stopped first host never moves it.
    monkeypatch.chdir(tmp_path)
    loop, ends = Loop(), []
    loop.later(0.2, lambda: loop.stop(7))
    with listen("door", 0), contextlib.ExitStack() as crowd:
        for _ in range(3):
            stranger = crowd.enter_context(socket.socket(socket.AF_UNIX))
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect("door")
        Knock("door", b"key", "algo-2", loop, on_join=ends.append, on_gone=lambda: ends.append("gone"))
        assert loop.run() == 7
    assert ends == []
