"""A prewarmed rank: a Python for this host's first rank, started before the supervisor knows whether it needs one.

A supervisor and a rank each spend time on imports. With a prewarmed rank the two import at the same time:

    __main__         start --- imports --- prepares --- start message --> a rank like any other
    prewarmed rank        \\- imports --- waits for the start message -/
                                                     \\- discard, or the supervisor's end --> it is gone

A rank must not differ for having been prewarmed. So it is used only if a fresh rank would get the same Python, and the
same values of the variables that an interpreter reads at its start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping

from herringbone_contract.constants import BASE_VARIABLE, DEFAULT_BASE, Key
from herringbone_entry.channel.attach import REPORT
from herringbone_entry.inherited import inherited
from herringbone_entry.launchers.plain import rank_argv
from herringbone_entry.processes import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone_entry.channel.frames import Message

# The interpreter, or a library that it is linked with, reads these before the first line of Python. All other variables
# can follow in the start message.
_EARLY = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "HOME", "TZ")


class PrewarmedRank:
    """A rank's Python that waits for its start message.

    `connection` is our end of its link. `pipes` are the reading and writing ends of its output, standard output first.
    Raises `OSError` when it cannot be started.
    """

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self._python, self._environment = python, environment
        # Its output may begin before the supervisor's loop runs; the pipes hold it until then.
        self.pipes = os.pipe(), os.pipe()
        self.connection, theirs = socket.socketpair()
        with theirs:
            (_, stdout), (_, stderr) = self.pipes
            # The rank finds its end of the link by this variable.
            variables = {**environment, REPORT: str(theirs.fileno())}
            try:
                self.pid = spawn(rank_argv(python), variables, stdout=stdout, stderr=stderr, inherit=[theirs.fileno()])
            except OSError:
                self._close()
                raise

    def preimport(self, order: Message) -> None:
        """Have it import modules ahead of its start message; see `preimport`. Raises `OSError`."""
        # JSON is an import that only standbys pay for here.
        from herringbone_entry.channel.frames import Wire

        Wire(self.connection).send(order)

    def serves(self, python: str, environment: Mapping[str, str]) -> bool:
        """Say whether it equals a rank that this Python would start now in this environment."""
        return (
            python == self._python
            and _early(environment) == _early(self._environment)
            # A variable can be added or changed in a running process, but nothing in the start message removes one.
            and self._environment.keys() <= environment.keys()
            and self._lives()
        )

    def lacks(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of an environment that differ from those it was started with."""
        return {name: value for name, value in environment.items() if self._environment.get(name) != value}

    def discard(self) -> None:
        """Kill it, reap it, and close its descriptors."""
        # Once it is reaped, its pid may be another process's.
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
            # (0, 0): the child exists and has not ended. A dead child is reaped by this call.
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False  # the supervisor has reaped it already


def start(environ: Mapping[str, str]) -> list[PrewarmedRank]:
    """Start a rank for the host that these variables describe; none when it would not serve, or cannot be started."""
    if not is_possible(environ):
        return []
    try:
        return [PrewarmedRank(sys.executable, inherited(environ))]
    except OSError:
        return []  # the same error will come with a message when the supervisor starts the rank


def is_possible(environ: Mapping[str, str]) -> bool:
    """Say whether ranks of this host may start ahead."""
    return not _is_mpi(environ) and all(map(os.path.isabs, _search_path(inherited(environ))))


def _is_mpi(environ: Mapping[str, str]) -> bool:
    """Say whether mpirun will start the ranks.

    This is a quick look at the text: JSON would cost an import. `job` reads the file again, and checks it.
    """
    path = f"{environ.get(BASE_VARIABLE) or DEFAULT_BASE}/input/config/hyperparameters.json"
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib again
            return Key.MPI_ENABLED.encode() in file.read()
    except OSError:
        return False


def _search_path(environment: Mapping[str, str]) -> list[str]:
    """Return the entries of PYTHONPATH.

    Relative entries count from a rank's first folder, and the folder of a prewarmed rank is another one.
    """
    path = environment.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_EARLY)}
