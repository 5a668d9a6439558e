"""A socket's path exists only while somebody listens."""

from __future__ import annotations

import socket
from pathlib import Path

from herringbone_entry.channel.unix_socket import listen


def test_a_listeners_path_is_not_there_before_it_listens(tmp_path: Path, monkeypatch) -> None:
    # Another host connected between the first host's bind and listen, was refused, took the first host for dead and
    # left. The first host then waited ten minutes for it. On a busy machine that happened once in 250 jobs.
    monkeypatch.chdir(tmp_path)
    seen = []

    class Watched(socket.socket):
        def listen(self, backlog: int) -> None:
            seen.append(Path("socket").exists())
            super().listen(backlog)

    with listen("socket", 1, Watched), socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect("socket")
    assert seen == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["socket"]
