"""The agent that mpirun runs in place of ssh to start a daemon on another host: `agent [-OPTION...] HOST WORD...`.

The agent passes the words to this host's supervisor and waits until the daemon on the other host has ended; it exits
with the daemon's code. The supervisors have proved themselves to each other, so no ssh, key or port is needed.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from herringbone_entry.channel.frames import Wire

_ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.append(sys.argv.pop(1)); from herringbone_entry.launchers.mpi_agent import main; main()"


def main() -> None:
    """Run `agent SOCKET [-OPTION...] HOST WORD...`; SOCKET is the supervisor's."""
    path, *words = sys.argv[1:]
    host, command = split(words)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wire = Wire(connection)
    wire.send({"kind": "spawn", "host": host, "command": command})
    try:
        answer = wire.wait()
    except EOFError:
        # The supervisor has ended.
        answer = {"code": 1, "tail": []}
    # To mpirun's own standard error, as ssh would have shown it.
    print(*answer["tail"], sep="\n", end="\n" * bool(answer["tail"]), file=sys.stderr)
    sys.exit(answer["code"])


def split(words: list[str]) -> tuple[str, str]:
    """Split ssh's arguments into the host and the words for its shell; options, which take no values, are dropped.

    >>> split(["-x", "algo-2", "PATH=/opt/bin:$PATH;", "prted", "--prtemca", "ess", '"env"'])
    ('algo-2', 'PATH=/opt/bin:$PATH; prted --prtemca ess "env"')
    """
    while words[0].startswith("-"):
        words = words[1:]
    return words[0], " ".join(words[1:])


def script(python: str, socket_path: str) -> str:
    """Return a shell script that runs this file: some mpiruns take a program's name and no arguments for it."""
    import shlex

    # -I and -S keep the user's PYTHONPATH and site-packages out: their modules could hide Python's own.
    command = shlex.join([python, "-I", "-S", "-c", _START, str(_ROOT), socket_path])
    # MPICH passes ssh's `-x` to the shell, which takes it as a request to trace commands.
    return f'{{ set +x; }} 2>/dev/null\nexec {command} "$@"\n'
