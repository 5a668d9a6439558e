"""What a controller tells a supervisor in private: the user's environment and the job's secret, in one line.

A container's own environment can be read by everyone who may ask the engine, so neither travels there. The line comes
over a descriptor (a container's standard input), which then stays open: its end says that the controller is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import ContractError

_READ_BYTES = 65_536
# Above those that a child is given.
_ABOVE = 10


class Private(NamedTuple):
    """What the line said. `lifeline` is the descriptor it came over, moved out of the way of children."""

    environment: dict[str, str]
    key: bytes | None
    lifeline: int


def read_private(environ: Mapping[str, str]) -> Private | None:
    """Read the controller's line from the descriptor that `HERRINGBONE_PRIVATE_FD` names; None where it is not set.

    The line is JSON: `{"environment": {"NAME": "value"}, "key": "<hexadecimal>"}`, both optional. Waits until it is
    there. Raises `ContractError` when the descriptor ends before the line does, or the line says something else.
    """
    named = environ.get(HostVariable.PRIVATE)
    if named is None:
        return None
    try:
        descriptor = _move(int(named))
        line = _line(descriptor)
    except (OSError, ValueError) as error:
        raise ContractError(f"{HostVariable.PRIVATE}={named} cannot be read: {error}") from error
    try:
        said = json.loads(line)
        environment = dict(said.get("environment", {}))
        key = bytes.fromhex(said["key"]) if said.get("key") else None
    except (ValueError, TypeError, AttributeError) as error:
        # Not the line itself: it is secret.
        raise ContractError(f"{HostVariable.PRIVATE}={named}: the line there is not the JSON of an object") from error
    if not all(isinstance(word, str) for pair in environment.items() for word in pair):
        raise ContractError(f"{HostVariable.PRIVATE}={named}: a name or a value of the environment is not text")
    return Private(environment, key, descriptor)


def _move(descriptor: int) -> int:
    """Return the descriptor under a number that no child inherits; standard input then is empty, not missing."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    if descriptor > 2:
        os.close(descriptor)
        return moved
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, descriptor)
    os.close(empty)
    return moved


def _line(descriptor: int) -> bytes:
    line = b""
    while b"\n" not in line:
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            raise ValueError("it ended before its line did; whoever started this host is gone")
        line += chunk
    return line.partition(b"\n")[0]
