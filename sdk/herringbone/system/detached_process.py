"""Start a process that outlives this Python, and hand it its config.

    with path.open("wb") as log:
        process = start_detached(command, log=log, folder=folder, environment=environment)
    hand_over(process, config)
    process.returncode = 0          # it goes on: without this, Popen reports a leak

Between the two calls, the caller can work while the process's Python starts.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any


def start_detached(
    command: Sequence[str],
    *,
    log: IO[bytes],
    folder: str | os.PathLike[str],
    environment: Mapping[str, str],
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the command with a pipe as its standard input; its output goes to `log`.

    `inherited` are descriptors that keep their numbers in the process.
    """
    return subprocess.Popen(
        command,
        # A pipe and not a file: the config may contain secrets. Its early end tells the process to end.
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        # A session of its own: the terminal's Ctrl-C and hang-up do not reach the process.
        start_new_session=True,
        # Popen closes all other descriptors in the child: no lock or socket of the user's Python stays open.
        pass_fds=inherited,
        # `-m` looks for modules in the current folder first: the user's may contain a json.py.
        cwd=folder,
        env=environment,
    )


def hand_over(process: subprocess.Popen[bytes], config: Any) -> None:
    """Write the config as JSON. Raises `BrokenPipeError` if the process died before it had read it."""
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(config).encode())
