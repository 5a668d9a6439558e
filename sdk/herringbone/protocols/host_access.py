"""The ways into one running host: a command with this process's terminal, and a connection to a port of its loopback.

    process     a child of this process; the port is on this machine
    docker      an exec of the engine (`engine.execution`)
    slurm       srun --overlap, in the allocation of the job
    ssh         ssh -t, and ssh -W for a port
    kubernetes  an exec of the API server (`backends.kubernetes.execution`)

Commands are lists of arguments. Where a program insists on a text, for the shell of another machine, `shlex` quotes it.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from herringbone_contract.constants import BASE_VARIABLE, HostVariable
from herringbone_contract.errors import RequestError

LOOPBACK = "127.0.0.1"
# The codes of a shell for a program that is not there.
_NOT_FOUND_CODE = 127
_ENTER, _RELAY, _FAULTS = "herringbone_entry.enter", "herringbone_entry.relay", "herringbone_entry.faults"


class HostAccess(Protocol):
    """The way into one host. `is_here` means that the host's loopback interface is this machine's."""

    is_here: bool

    def run(self, command: Sequence[str]) -> int:
        """Run a command there, a shell for an empty one, with this process's terminal; return its exit code."""

    def connect(self, port: int) -> socket.socket:
        """Return a connection to a port of the host's loopback interface. Raises `OSError` or `HerringboneError`."""

    def strike(self, kind: str, seconds: float = 0.0) -> int:
        """Cause a fault on the host, as `herringbone_entry.faults` does, and return its exit code."""


def enter_words(python: str, base: str | None, job: str, command: Sequence[str]) -> list[str]:
    """Return the words that run a command on a host as a rank would start.

    >>> enter_words("python3", "/jobs/a/hosts/algo-1/ml", "a", ["ls", "-l"])[-5:]
    ['python3', '-m', 'herringbone_entry.enter', 'ls', '-l']

    `base` is the host's tree, None for a container, whose tree is at its usual place.
    """
    variables = [] if base is None else [f"{BASE_VARIABLE}={base}", f"{HostVariable.JOB_NAME}={job}"]
    return [*(["env", *variables] if variables else []), python, "-m", _ENTER, *command]


def relay_words(python: str, port: int) -> list[str]:
    """Return the words that join standard input and output with a port, on the host.

    >>> relay_words("python3", 5678)
    ['python3', '-m', 'herringbone_entry.relay', '5678']
    """
    return [python, "-m", _RELAY, str(port)]


def fault_words(kind: str, seconds: float = 0.0) -> list[str]:
    """Return the command that causes a fault on the host where it runs; see `herringbone_entry.faults`.

    >>> fault_words("frozen", 2.5)
    ['-m', 'herringbone_entry.faults', 'frozen', '2.5']
    """
    return ["-m", _FAULTS, kind, str(seconds)]


class LocalAccess:
    """The way to a host that is processes of this machine; `base` is its tree, `folder` a folder without modules."""

    is_here = True

    def __init__(self, python: str, base: Path, job: str, folder: Path) -> None:
        self._python, self._base, self._job, self._folder = python, base, job, folder

    def run(self, command: Sequence[str]) -> int:
        # `-m` looks for modules in the current folder first, and the code's may have a json.py.
        return call(enter_words(self._python, str(self._base), self._job, command), folder=self._folder)

    def connect(self, port: int) -> socket.socket:
        return socket.create_connection((LOOPBACK, port))

    def strike(self, kind: str, seconds: float = 0.0) -> int:
        return self.run(fault_words(kind, seconds))


class CommandAccess:
    """The way to a host that a program reaches: `enter` and `relay` return its words.

    `enter(command, terminal)` runs a command; `relay(port)` joins its standard input and output with a port.
    """

    is_here = False

    def __init__(self, ways: Ways) -> None:
        self._ways = ways

    def run(self, command: Sequence[str]) -> int:
        terminal = os.isatty(0) and os.isatty(1)
        return call(self._ways.enter(command, terminal=terminal))

    def strike(self, kind: str, seconds: float = 0.0) -> int:
        return self.run(fault_words(kind, seconds))

    def connect(self, port: int) -> socket.socket:
        words = self._ways.relay(port)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own: Ctrl-C ends the tunnel, which closes the connections in their order.
                process = subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
                # It ends with its connection, which Popen would report as a leak.
                process.returncode = 0
            except OSError as error:
                ours.close()
                raise RequestError(f"{words[0]} cannot be started: {error.strerror}") from error
        return ours


class Ways(Protocol):
    """The words of a program that reaches a host. Pure."""

    def enter(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the words that run a command there."""

    def relay(self, port: int) -> list[str]:
        """Return the words that join standard input and output with a port there."""


def call(words: Sequence[str], *, folder: Path | None = None) -> int:
    """Run a program with this process's terminal and return its exit code, as a shell counts."""
    try:
        process = subprocess.Popen(words, cwd=folder)
    except FileNotFoundError as error:
        raise RequestError(f"{words[0]} is not on this machine ({error.strerror})") from error
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The terminal has sent Ctrl-C to the program as well, which decides.
            continue
        return 128 - code if code < 0 else code
