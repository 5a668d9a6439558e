"""A Python for this host's first rank, started before anybody knows whether one is wanted.

A supervisor and a rank each take a moment to import what they need; this way the two come up at the same time:

    __main__   start --- imports --- prepares --- take: "do this" --> a rank like any other
    spare            \\- imports --- waits for its orders -------/
                                               \\- discard, or the supervisor's end --> it is gone

A rank must not differ for having been a spare: it is taken only where it would have been started with the same Python,
and the same variables among those that an interpreter reads once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping

from herringbone_contract.constants import BASE_VARIABLE, DEFAULT_BASE, Key
from herringbone_entry.inherited import inherited
from herringbone_entry.launchers.plain import rank_argv
from herringbone_entry.ranks.attach import REPORT
from herringbone_entry.spawn import spawn

# Read by the interpreter, or by what it is linked with, before the first line of Python: all others can follow.
_EARLY = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "HOME", "TZ")


class Spare:
    """A rank's Python that waits for its orders.

    `connection` is our end of its link; `pipes` are what it writes to, reading and writing ends, standard output first.
    Raises `OSError` where it cannot be started.
    """

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self._python, self._environment = python, environment
        self.pipes = os.pipe(), os.pipe()
        self.connection, theirs = socket.socketpair()
        with theirs:
            (_, stdout), (_, stderr) = self.pipes
            given = {**environment, REPORT: str(theirs.fileno())}
            try:
                self.pid = spawn(rank_argv(python), given, stdout=stdout, stderr=stderr, inherit=[theirs.fileno()])
            except OSError:
                self._close()
                raise

    def serves(self, python: str, environment: Mapping[str, str]) -> bool:
        """Say whether it is as good as that Python, started now in that environment."""
        return (
            python == self._python
            and _early(environment) == _early(self._environment)
            and self._environment.keys() <= environment.keys()
            and self._lives()
        )

    def lacks(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what of an environment it was not started with."""
        return {name: value for name, value in environment.items() if self._environment.get(name) != value}

    def discard(self) -> None:
        """Leave nothing of it."""
        # Once it is reaped, its pid may be another's.
        if self._lives():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._close()

    def _close(self) -> None:
        self.connection.close()
        for ends in self.pipes:
            for end in ends:
                os.close(end)

    def _lives(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False  # the supervisor has taken note of its end


def start(environ: Mapping[str, str]) -> Spare | None:
    """Start one for the host that these variables describe; None where it would not be wanted, or cannot be had."""
    environment = inherited(environ)
    if _is_mpi(environ) or not all(map(os.path.isabs, _search_path(environment))):
        return None
    try:
        return Spare(sys.executable, environment)
    except OSError:
        return None  # a rank that is started in time will say why


def _is_mpi(environ: Mapping[str, str]) -> bool:
    """Say whether mpirun will start the ranks. The file is read again, and checked, by who takes part in the job."""
    path = f"{environ.get(BASE_VARIABLE) or DEFAULT_BASE}/input/config/hyperparameters.json"
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib again
            return Key.MPI_ENABLED.encode() in file.read()
    except OSError:
        return False


def _search_path(environment: Mapping[str, str]) -> list[str]:
    """Return the entries of PYTHONPATH; relative ones count from where a rank begins, which a spare cannot know."""
    path = environment.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_EARLY)}
