"""The agent that mpirun runs in place of ssh to start a daemon on another host: `agent [-OPTION...] HOST WORD...`.

The agent reads the words as the argument vector of a daemon, passes it to this host's supervisor, and waits until the
daemon on the other host has ended; it exits with the daemon's code. The supervisors have proved themselves to each
other, so no ssh, key or port is needed, and no shell on the other host reads the words.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from herringbone_entry.channel.frames import Wire

_ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.append(sys.argv.pop(1)); from herringbone_entry.launchers.mpi_agent import main; main()"


def main() -> None:
    """Run `agent SOCKET [-OPTION...] HOST WORD...`; SOCKET is the supervisor's."""
    path, *words = sys.argv[1:]
    try:
        host, argv, variables = split(words)
    except ValueError as error:
        sys.exit(f"mpirun's command for a daemon cannot be read: {error}")
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wire = Wire(connection)
    wire.send({"kind": "spawn", "host": host, "argv": argv, "variables": variables})
    try:
        answer = wire.wait()
    except EOFError:
        # The supervisor has ended.
        answer = {"code": 1, "tail": []}
    # To mpirun's own standard error, as ssh would have shown it.
    print(*answer["tail"], sep="\n", end="\n" * bool(answer["tail"]), file=sys.stderr)
    sys.exit(answer["code"])


def split(words: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """Return the host, the argument vector and the variables in ssh's arguments; ssh's own options are dropped.

    mpirun writes the words for a shell: assignments and exports, each with a semicolon, then one program with quoted
    arguments. Raises `ValueError` for any other form.

    >>> split(["-x", "algo-2", "PATH=/opt/bin:$PATH; export PATH; prted", "--prtemca", "ess", '"env"'])
    ('algo-2', ['prted', '--prtemca', 'ess', 'env'], {'PATH': '/opt/bin:$PATH'})
    """
    while words and words[0].startswith("-"):
        words = words[1:]
    if not words:
        raise ValueError("it names no host")
    host, text = words[0], " ".join(words[1:]).strip()
    if text.startswith(_PROFILE) and text.endswith(")"):
        text = text[len(_PROFILE) : -1]
    *assignments, argv = _commands(text)
    variables = {}
    for command in assignments:
        match = _ASSIGNMENT.fullmatch(" ".join(command))
        if match is None:
            raise ValueError(f"{' '.join(command)!r} is neither NAME=VALUE nor `export NAME`")
        if match["name"]:
            variables[match["name"]] = match["value"]
    if not argv or "=" in argv[0]:
        raise ValueError(f"no program in {text!r}")
    return host, argv, variables


# Open MPI has the other host read the profile of a user whose shell is sh or ksh. Supervisors have their variables.
_PROFILE = "( test ! -r ./.profile || . ./.profile;"
# mpirun's own assignments are of paths, which neither the shell nor this pattern splits.
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>[^\s`]*)|export( [A-Za-z_]\w*)+")


def _commands(text: str) -> list[list[str]]:
    """Split a shell's text into commands at semicolons, and each command into words; quotes protect both."""
    import shlex

    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    # A `#` begins no comment here: it may stand in a folder's name.
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        # A quoted semicolon alone is a word like this one, too; no mpirun writes such an argument.
        if set(word) == {";"}:
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def expand(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with this host's own values: each may refer to its own name, and to nothing else.

    >>> expand({"PATH": "/opt/bin:$PATH", "PREFIX": "/opt"}, {"PATH": "/bin"})
    {'PATH': '/opt/bin:/bin', 'PREFIX': '/opt'}
    """
    return {name: value.replace(f"${name}", environment.get(name, "")) for name, value in variables.items()}


def script(python: str, socket_path: str) -> str:
    """Return a shell script that runs this file: some mpiruns take a program's name and no arguments for it."""
    import shlex

    # -I and -S keep the user's PYTHONPATH and site-packages out: their modules could hide Python's own.
    command = shlex.join([python, "-I", "-S", "-c", _START, str(_ROOT), socket_path])
    # MPICH passes ssh's `-x` to the shell, which takes it as a request to trace commands.
    return f'{{ set +x; }} 2>/dev/null\nexec {command} "$@"\n'
