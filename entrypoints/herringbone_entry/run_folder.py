"""The private folder for a host's sockets and MPI's session files: the backend's, or one of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from herringbone_contract.errors import LaunchError

_OWN = "/tmp"  # noqa: S108 - what is made there is ours alone


class RunFolder:
    """`given` is the backend's, who removes it; without one, our own is made when `path` is first asked for.

    Most jobs never ask: only ranks of mpirun's meet there.
    """

    def __init__(self, given: str | None, environ: Mapping[str, str]) -> None:
        self._path = given
        self._parent = environ.get("TMPDIR") or _OWN
        self._own: str | None = None

    @property
    def path(self) -> str:
        """Where it is. Raises `LaunchError` when it cannot be made."""
        if self._path is None:
            # By hand: `tempfile` costs milliseconds. A short name, for a socket's path may have about 100 bytes.
            path = f"{self._parent}/hb-{os.urandom(6).hex()}"
            try:
                Path(path).mkdir(mode=0o700)
            except OSError as error:
                raise LaunchError(
                    f"no folder for sockets can be made in {self._parent} ({error.strerror}); give the host a writable "
                    f"{_OWN}, or set TMPDIR"
                ) from error
            self._path = self._own = path
        return self._path

    def remove(self) -> None:
        """Remove what we made."""
        if self._own is not None:
            import shutil

            shutil.rmtree(self._own, ignore_errors=True)
