"""The private folder of a host for its sockets, its FIFO and MPI's session files: the backend's, or one of our own."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from herringbone_contract.errors import LaunchError
from herringbone_contract.events import stop_file

_DEFAULT_PARENT = "/tmp"  # noqa: S108 - we make a folder there that only we can open
_FIFO_BYTES = 1 << 20


class RunFolder:
    """Keeps the backend's folder, which the backend removes; or makes one when `path` is first read.

    The FIFO for events is there; ranks under mpirun connect there.
    """

    def __init__(self, backend_folder: str | None, environ: Mapping[str, str]) -> None:
        self._path = backend_folder
        self._parent = environ.get("TMPDIR") or _DEFAULT_PARENT
        self._own: str | None = None
        self._files: list[str] = []

    @property
    def path(self) -> str:
        """The folder's path. Raises `LaunchError` when it cannot be made."""
        if self._path is None:
            # `tempfile` would cost milliseconds of imports. The name is short: a socket's path may have 107 bytes.
            path = f"{self._parent}/hb-{os.urandom(6).hex()}"
            try:
                Path(path).mkdir(mode=0o700)
            except OSError as error:
                raise LaunchError(
                    f"no folder for sockets can be made in {self._parent} ({error.strerror}); give the host a writable "
                    f"{_DEFAULT_PARENT}, or set TMPDIR"
                ) from error
            self._path = self._own = path
        return self._path

    def make_fifo(self, name: str) -> tuple[str, int]:
        """Make a FIFO that only this user can open; return its path, and a descriptor for both of its ends.

        With the writing end open here, a reader never sees the end. Raises `LaunchError` or `OSError`.
        """
        path = f"{self.path}/{name}"
        # A supervisor that was killed has left its own.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        os.mkfifo(path, 0o600)
        self._files.append(path)
        # POSIX leaves open what this does; Linux and macOS open both ends.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # Ranks drop what finds no room. The kernel refuses when this user's pipes hold too much memory.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _FIFO_BYTES)
        return path, descriptor

    def make_stop_file(self, fifo: str, ranks: int) -> str:
        """Make the file by which ranks agree on a stop, next to a FIFO; return its path, "" where that cannot be."""
        path = stop_file.path_of(fifo)
        with contextlib.suppress(OSError):
            stop_file.make(path, ranks)
            self._files.append(path)
            return path
        return ""

    def remove(self) -> None:
        """Remove the FIFOs and files, and the folder if we made it."""
        for path in self._files:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - as fast as can be: the user waits for the end
        if self._own is None:
            return
        try:
            os.rmdir(self._own)  # noqa: PTH106
        except OSError:
            import shutil

            shutil.rmtree(self._own, ignore_errors=True)
