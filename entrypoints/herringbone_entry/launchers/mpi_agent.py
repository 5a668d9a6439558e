"""mpirun's way to another host: it starts this where it would start ssh, as `agent [-OPTION...] HOST WORD...`.

Passes the words to this host's supervisor, which knows the way to the other one, and stays until mpirun's daemon over
there has ended, with its exit code. No ssh, no key, no port: the supervisors have proved to each other who they are.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from herringbone_entry.channel.frames import Wire

_ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.append(sys.argv.pop(1)); from herringbone_entry.launchers.mpi_agent import main; main()"


def main() -> None:
    """Run as the agent: `agent SOCKET [-OPTION...] HOST WORD...`, where SOCKET is the supervisor's."""
    path, *words = sys.argv[1:]
    host, command = split(words)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wire = Wire(connection)
    wire.send({"kind": "spawn", "host": host, "command": command})
    try:
        answer = wire.wait()
    except EOFError:
        answer = {"code": 1, "tail": []}
    # To mpirun's own standard error, as ssh would have shown it.
    print(*answer["tail"], sep="\n", end="\n" * bool(answer["tail"]), file=sys.stderr)
    sys.exit(answer["code"])


def split(words: list[str]) -> tuple[str, str]:
    """Take ssh's arguments apart: options that stand alone, the host, and words for the shell over there.

    >>> split(["-x", "algo-2", "PATH=/opt/bin:$PATH;", "prted", "--prtemca", "ess", '"env"'])
    ('algo-2', 'PATH=/opt/bin:$PATH; prted --prtemca ess "env"')
    """
    while words[0].startswith("-"):
        words = words[1:]
    return words[0], " ".join(words[1:])


def script(python: str, socket_path: str) -> str:
    """Return a shell script that runs this file: some mpiruns take the name of a program and no arguments to it."""
    import shlex

    # Neither the user's PYTHONPATH nor site-packages: a module of theirs could stand before Python's own.
    command = shlex.join([python, "-I", "-S", "-c", _START, str(_ROOT), socket_path])
    # MPICH passes ssh's `-x`, which has a shell trace what it does.
    return f'{{ set +x; }} 2>/dev/null\nexec {command} "$@"\n'
