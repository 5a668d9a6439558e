"""Remove the lock that an ended process has left in torch's folder of extensions.

Torch builds extensions, DeepSpeed's operations among them, under a lock file. A process that is killed meanwhile leaves
the file behind, and every later job would wait for it without end. Source: torch 2.13, `torch.utils.file_baton`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from herringbone_contract.files import locked

# Another machine or container may build in the same folder, and its processes are not visible here.
_LONGEST_BUILD_S = 600.0


def watch(module: ModuleType, longest_build_s: float = _LONGEST_BUILD_S) -> None:
    """Make `FileBaton` of torch's module `file_baton` wait for no process that has ended."""
    original = module.FileBaton.try_acquire

    def try_acquire(baton: Any) -> bool:
        path, warned = Path(baton.lock_file_path), False
        while not original(baton):
            if _is_open(path):
                # Torch waits for the process that builds.
                return False
            if _remove(path, longest_build_s):
                _print(f"removed {path}, the lock of an ended process that built an extension")
            elif not warned:
                warned = True
                _print(
                    f"waiting for {path}: no process of this machine holds it. It is removed when it is"
                    f" {longest_build_s:.0f} s old; remove it now if no other machine or container builds there"
                )
            else:
                time.sleep(baton.wait_seconds)
        return True

    module.FileBaton.try_acquire = try_acquire


def _is_open(path: Path) -> bool:
    """Say whether a process of this machine has the file open; torch keeps it open while it builds."""
    with contextlib.suppress(OSError):
        lock = path.stat()
        return any(os.path.samestat(lock, other) for other in _open_files())
    return False


def _open_files() -> Iterator[os.stat_result]:
    for process in Path("/proc").iterdir():
        # Processes end, and those of other users are closed to this one.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir() if process.name.isdigit() else ():
                with contextlib.suppress(OSError):
                    yield descriptor.stat()


def _remove(path: Path, older_than_s: float) -> bool:
    """Remove a lock of this age; return False where it is younger, or gone."""
    # One rank at a time: another one may remove this lock and take a new one of the same name.
    with contextlib.suppress(OSError), locked(path.with_name(f".{path.name}.herringbone")):
        if time.time() - path.stat().st_mtime >= older_than_s:
            path.unlink()
            return True
    return False


def _print(text: str) -> None:
    print(f"herringbone: {text}", file=sys.stderr, flush=True)
