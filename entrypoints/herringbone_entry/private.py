"""The private line from a controller to a supervisor: the user's environment and the job's secret.

Everyone who may use the container engine can read a container's environment, so neither travels there. The line comes
over a descriptor (a container's standard input) that then stays open: requests of clients follow, one a line, and the
descriptor's end means that the controller is gone.
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
# The lowest number for our copy of the descriptor: children use the numbers below.
_LOWEST = 10


class NeverStarted(Exception):
    """The line of a standby has ended: nobody needs it."""


class Private(NamedTuple):
    """The content of the line. `lifeline` is its descriptor, moved to a number that no child inherits.

    `rest` are the bytes after the line that came with it: the beginning of the first request.
    """

    environment: dict[str, str]
    key: bytes | None
    lifeline: int
    rest: bytes = b""


def read_private(environ: Mapping[str, str]) -> Private | None:
    """Read the controller's line from the descriptor in `HERRINGBONE_PRIVATE_FD`; return None if that is not set.

    The line is JSON: `{"environment": {"NAME": "value"}, "key": "<hexadecimal>"}`, both optional. Waits for the line.
    Raises `ContractError` when the descriptor ends before the line does, or the line is something else; `NeverStarted`
    when it ends in a standby.
    """
    number = environ.get(HostVariable.PRIVATE)
    if number is None:
        return None
    try:
        descriptor = _move(int(number))
        line, rest = _line(descriptor)
    except (OSError, ValueError) as error:
        if environ.get(HostVariable.STANDBY) == "1":
            raise NeverStarted from None
        raise ContractError(f"{HostVariable.PRIVATE}={number} cannot be read: {error}") from error
    try:
        content = json.loads(line)
        environment = dict(content.get("environment", {}))
        key = bytes.fromhex(content["key"]) if content.get("key") else None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # The message does not quote the line, which is secret.
        raise ContractError(f"{HostVariable.PRIVATE}={number}: the line there is not the JSON of an object") from error
    if not all(isinstance(word, str) for pair in environment.items() for word in pair):
        raise ContractError(f"{HostVariable.PRIVATE}={number}: a name or a value of the environment is not text")
    return Private(environment, key, descriptor, rest)


def _move(descriptor: int) -> int:
    """Move the descriptor to a number that no child inherits.

    Standard input becomes empty and stays open: otherwise the next file that is opened would become descriptor 0.
    """
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    if descriptor > 2:
        os.close(descriptor)
        return moved
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, descriptor)
    os.close(empty)
    return moved


def _line(descriptor: int) -> tuple[bytes, bytes]:
    """Return the line, and what was read after it."""
    # The line may be longer than one read.
    line = b""
    while b"\n" not in line:
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            raise ValueError("it ended before its line did; the program that started this host is gone")
        line += chunk
    line, _, rest = line.partition(b"\n")
    return line, rest
