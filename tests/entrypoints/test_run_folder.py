"""The folder for sockets is the backend's or our own, and ours is made only when needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone_contract.errors import LaunchError
from herringbone_entry.run_folder import RunFolder


def test_our_own_folder_is_private_and_made_at_the_first_read(tmp_path: Path) -> None:
    folder = RunFolder(None, {"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
    assert Path(folder.path).stat().st_mode & 0o777 == 0o700
    assert folder.path == folder.path
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_backends_folder_stays(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), {})
    assert folder.path == str(tmp_path)
    folder.remove()
    assert tmp_path.is_dir()


def test_a_folder_that_cannot_be_made_gives_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no folder for sockets can be made in .*/nowhere \(No such file"):
        assert RunFolder(None, {"TMPDIR": str(tmp_path / "nowhere")}).path


def test_a_fifo_is_private_never_ends_and_goes_with_the_host(tmp_path: Path) -> None:
    # A supervisor that was killed has left its own.
    os.mkfifo(tmp_path / "events")
    folder = RunFolder(str(tmp_path), {})
    path, descriptor = folder.make_fifo("events")
    assert Path(path).stat().st_mode & 0o777 == 0o600
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"x")
    os.close(writer)
    assert os.read(descriptor, 9) == b"x"
    # Without a writer an ordinary reader would see the end here.
    with pytest.raises(BlockingIOError):
        os.read(descriptor, 9)
    folder.remove()
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == []
