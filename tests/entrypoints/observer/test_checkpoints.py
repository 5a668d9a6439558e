"""Checkpoints become events when they are complete."""

from __future__ import annotations

import os
from pathlib import Path

from herringbone_entry.observer.checkpoints import Checkpoints, tree_bytes


class Looks:
    """A source that looks at each poll."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.now = 0.0
        self._source = Checkpoints(str(folder), clock=lambda: self.now, **limits)

    def __call__(self) -> list[tuple[str, int]]:
        self.now += 5.0
        return [(event["path"], event["bytes"]) for event in self._source.poll(1e12)]

    def last(self) -> list[str]:
        return [event["path"] for event in self._source.last(1e12)]


def test_new_and_replaced_entries_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"1")
    looks = Looks(tmp_path)
    (tmp_path / "new.pt").write_bytes(b"12")
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "epoch-1" / "a").write_bytes(b"123")
    (tmp_path / ".half.tmp").write_bytes(b"1")
    # An entry that is still written is no checkpoint: it must be the same at two looks.
    assert [looks(), looks(), looks()] == [[], [("epoch-1", 3), ("new.pt", 2)], []]
    (tmp_path / "next").write_bytes(b"1234")
    (tmp_path / "next").replace(tmp_path / "old.pt")
    assert [looks(), looks(), looks()] == [[], [("old.pt", 4)], []]
    (tmp_path / "last.pt").write_bytes(b"1")
    assert looks.last() == ["last.pt"]


def test_an_entry_from_before_the_observer_but_not_the_ranks_is_news(tmp_path: Path) -> None:
    for name, seconds in (("before.pt", 100.0), ("first.pt", 102.0)):
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, (seconds, seconds))
    source = Checkpoints(str(tmp_path), since=101.0)
    assert [event["path"] for event in source.last(1e12)] == ["first.pt"]


def test_an_entry_that_grows_is_reported_when_it_is_still(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    file = tmp_path / "a.pt"
    for size in range(3):
        file.write_bytes(b"x" * size)
        os.utime(file, ns=(size, size))
        assert looks() == []
    assert looks() == [("a.pt", 2)]


def test_links_and_crowds_are_harmless(tmp_path: Path) -> None:
    looks = Looks(tmp_path, max_entries=5)
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    assert [looks(), looks()] == [[], [("folder", 0)]]
    for number in range(20):
        (tmp_path / "folder" / str(number)).touch()
        (tmp_path / str(number)).touch()
    looks()
    assert len(looks()) <= 5
    assert tree_bytes(str(tmp_path / "folder"), max_files=3) is None


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    looks = Looks(tmp_path / "none")
    assert looks() == []
