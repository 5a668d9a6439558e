"""The private folder of a host for its sockets and MPI's session files: the backend's, or one of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from herringbone_contract.errors import LaunchError

_DEFAULT_PARENT = "/tmp"  # noqa: S108 - we make a folder there that only we can open


class RunFolder:
    """Keeps the backend's folder, which the backend removes; or makes one when `path` is first read.

    Most jobs never read it: only ranks under mpirun connect there.
    """

    def __init__(self, backend_folder: str | None, environ: Mapping[str, str]) -> None:
        self._path = backend_folder
        self._parent = environ.get("TMPDIR") or _DEFAULT_PARENT
        self._own: str | None = None

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

    def remove(self) -> None:
        """Remove the folder if we made it."""
        if self._own is not None:
            import shutil

            shutil.rmtree(self._own, ignore_errors=True)
