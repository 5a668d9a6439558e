"""A lock that an ended process has left in torch's folder of extensions delays no later job without end."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from herringbone_entry.ranks import build_lock

file_baton = pytest.importorskip("torch.utils.file_baton")


@pytest.fixture
def module() -> ModuleType:
    copy = ModuleType("file_baton")
    copy.FileBaton = type("FileBaton", (file_baton.FileBaton,), {})  # type: ignore[attr-defined]
    return copy


def test_the_lock_of_an_ended_process_is_removed(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_lock.watch(module, longest_build_s=100)
    lock = tmp_path / "lock"
    lock.touch()
    os.utime(lock, (0, 0))
    baton = module.FileBaton(str(lock))
    assert baton.try_acquire()
    assert f"removed {lock}, the lock of an ended process" in capsys.readouterr().err
    assert lock.stat().st_mtime > 0
    baton.release()
    assert not lock.exists()


def test_a_younger_lock_is_reported_before_the_wait(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_lock.watch(module, longest_build_s=0.3)
    (tmp_path / "lock").touch()
    assert module.FileBaton(str(tmp_path / "lock")).try_acquire()
    assert "no process of this machine holds it" in capsys.readouterr().err


def test_a_lock_that_a_process_holds_is_waited_for(module: ModuleType, tmp_path: Path) -> None:
    build_lock.watch(module, longest_build_s=0)
    holder, other = (module.FileBaton(str(tmp_path / "lock")) for _ in range(2))
    assert holder.try_acquire()
    assert not other.try_acquire()
    holder.release()
    assert other.try_acquire()
