"""Start a program as a child of its own process group."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

# An ignored signal stays ignored in a child: Python ignores SIGPIPE, a shell's `&` SIGINT and SIGQUIT, `nohup` SIGHUP.
_RESTORED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def spawn(
    argv: list[str], environment: Mapping[str, str], *, stdout: int, stderr: int, inherit: Sequence[int] = ()
) -> int:
    """Start a program in a process group of its own and return its pid.

    Its standard input is empty and it ignores no signal. Descriptors in `inherit` keep their number in the child.
    """
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),  # type: ignore[list-item]
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    # Duplicated onto itself, a descriptor loses its close-on-exec flag, in the child alone.
    actions += [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in inherit]
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setpgroup=0, setsigdef=_RESTORED_SIGNALS, setsigmask=()
    )
