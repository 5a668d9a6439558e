"""Start a process that outlives this Python, and hand it its config.

    with path.open("wb") as log:
        process = start_detached(command, log=log, folder=folder, environment=...)
    hand_over(process, config)
    process.returncode = 0          # it goes on: without this, Popen reports a leak

Between the two calls, the caller can work while the process's Python starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any


def start_detached(
    command: Sequence[str],
    *,
    log: IO[bytes],
    folder: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the command with a pipe as its standard input; its output goes to `log`.

    The process gets this one's environment and `environment`. `inherited` are descriptors that keep their numbers.
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
        env={**os.environ, **search_path(), **(environment or {})},
    )


def hand_over(process: subprocess.Popen[bytes], config: Any) -> None:
    """Write the config as JSON. Raises `BrokenPipeError` if the process died before it had read it."""
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(config).encode())


@contextmanager
def blocked(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread.

    A child inherits the mask, so a signal that reaches the new process stays pending until the process has handlers
    and unblocks it. With the default disposition the signal would kill the process instead.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def search_path() -> dict[str, str]:
    """Return PYTHONPATH with absolute entries, because the processes of a job run in other folders."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep))}  # noqa: PTH100
