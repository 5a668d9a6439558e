"""A socket that is there is listened at."""

from __future__ import annotations

import socket
from pathlib import Path

from herringbone_entry.channel.unix_socket import listen


def test_a_listeners_path_is_not_there_before_it_listens(tmp_path: Path, monkeypatch) -> None:
    # Another host knocked between the first one's bind and listen, was refused, took the first host for dead and
    # left; the first host waited ten minutes for it. A busy machine made that moment long enough, once in 250 jobs.
    monkeypatch.chdir(tmp_path)
    seen = []

    class Watched(socket.socket):
        def listen(self, backlog: int) -> None:
            seen.append(Path("door").exists())
            super().listen(backlog)

    monkeypatch.setattr(socket, "socket", Watched)
    with listen("door", 1), Watched(socket.AF_UNIX) as visitor:
        visitor.connect("door")
    assert seen == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["door"]
