"""The link between a process of a host and the host's holder: one packet a message, with a descriptor where one goes.

    rank -> holder    {"do": "room"}                               -> {"busy", "copied"}
                      {"do": "put", save, step, name} + memfd      -> {}           sealed: its bytes cannot change
                      {"do": "list"}                               -> {} + memfd   of JSON: [[save, step, name], ...]
                      {"do": "get", save, name, hosts}             -> {} + memfd   its own, or of a holder of `hosts`
                      {"do": "keep", save, step, names}            -> {}           drops all other saves; names: hosts
    every answer may be {"error"} instead. `names` of a `keep` are this host's files, each with the hosts that have it

A save is whole once a holder has its manifest. Whoever asks for a save to be kept has resumed from it; `keep` of no
save forgets everything. Linux alone has sealed memfds, and packets in order over Unix sockets.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import re
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_PACKET = 1 << 16
_SAVE = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DESCRIPTOR_BYTES = array.array("i").itemsize
# A holder that only looks at what it has answers at once; one that asks other machines first needs their limits.
_ANSWER_SECONDS, _FETCH_SECONDS = 5.0, 600.0


class HolderError(OSError):
    """The holder is gone, does not answer, or refuses."""


class AbsentError(HolderError):
    """No holder has this file."""


def seals() -> int:
    """Return the seals of a file that is complete: nobody changes its bytes or its size any more."""
    return fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def new_file(name: str) -> int:
    """Return the descriptor of a new file in memory. Raises `OSError` where there is no memory, or not Linux."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memfds")
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def close_file(descriptor: int) -> None:
    """Seal a file whose content is complete."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals())


def is_sealed(descriptor: int) -> bool:
    """Report whether a descriptor is a file in memory that nobody can change."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals() == seals()
    except OSError:
        return False


def is_save(value: object) -> bool:
    """Report whether a value is the name of a save."""
    return isinstance(value, str) and _SAVE.fullmatch(value) is not None


def is_name(value: object) -> bool:
    """Report whether a value is the name of a file in a save."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def send(connection: socket.socket, message: Mapping[str, Any], descriptor: int | None = None) -> None:
    """Send one message. Raises `OSError`, also for one that is too long."""
    body = json.dumps(message).encode()
    if len(body) > MAX_PACKET:
        raise HolderError(f"a message of {len(body)} bytes; {MAX_PACKET} are the limit")
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    connection.sendmsg([body], rights)


def receive(connection: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """Return the next message and its descriptor; None at the end. Raises `HolderError` for what is no message."""
    body, ancillary, flags, _ = connection.recvmsg(
        MAX_PACKET, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    )
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    descriptors = list(numbers)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(descriptors) > 1:
            raise HolderError("a message that is too long, or with several descriptors")
        if not body and not descriptors:
            return None
        message = json.loads(body)
        if not isinstance(message, dict):
            raise HolderError("not an object")
        kept = descriptors.pop() if descriptors else None
    except (ValueError, RecursionError) as error:
        raise HolderError(f"not JSON: {error}") from error
    finally:
        for left in descriptors:
            with contextlib.suppress(OSError):
                os.close(left)
    return message, kept


def ask(path: str, message: Mapping[str, Any], descriptor: int | None = None) -> tuple[dict[str, Any], int | None]:
    """Send the holder at `path` a message, and return its answer. Raises `HolderError`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_FETCH_SECONDS if message["do"] in ("get", "keep") else _ANSWER_SECONDS)
            connection.connect(path)
            send(connection, message, descriptor)
            answer = receive(connection)
    except HolderError:
        raise
    except OSError as error:
        raise HolderError(f"the holder of checkpoints in memory does not answer: {error}") from error
    if answer is None:
        raise HolderError("the holder of checkpoints in memory ended instead of an answer")
    if (reason := answer[0].get("error")) is not None:
        if answer[1] is not None:
            os.close(answer[1])
        raise (AbsentError if answer[0].get("absent") else HolderError)(str(reason))
    return answer


def forget(path: str) -> None:
    """Have the holder at `path` forget all that it holds; a holder that is gone holds nothing."""
    with contextlib.suppress(HolderError):
        ask(path, {"do": "keep", "save": "", "step": 0, "names": {}})
