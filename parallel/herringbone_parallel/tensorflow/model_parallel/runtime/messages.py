"""Messages between two ranks: a header of fixed size, and bytes. No pickle: a tensor is its type, shape and data.

    kind, plan, step, microbatch, edge, length of the description, length of the data | description | data

`plan` identifies a cut of a step. The numbers of edges mean the same on two ranks only if both have the same cut.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from herringbone_contract.errors import ParallelError

_HEADER = struct.Struct("<BIIIIIQ")
# TensorFlow takes over memory without a copy only at an address that is a multiple of this.
_ALIGNMENT = 64
# The type codes of numpy itself. bfloat16 and similar types are known by name, once TensorFlow is imported.
_PLAIN = frozenset("?bhilqBHILQefdFD")


class Kind(IntEnum):
    """Kind of a message."""

    TENSOR = 0
    OBJECT = 1
    RECEIPT = 2
    FAILED = 3
    GOODBYE = 4


class Key(NamedTuple):
    """Key of a travelling value: every rank numbers steps, microbatches and edges alike."""

    step: int = 0
    microbatch: int = 0
    edge: int = 0


class Message(NamedTuple):
    """One message; its content is an array for a tensor, and bytes for every other kind."""

    kind: Kind
    plan: int
    key: Key
    content: Any


def parts(message: Message) -> list[Any]:
    """Return a message as buffers to send one after the other; arrays are not copied."""
    if message.kind is Kind.TENSOR:
        array = np.asarray(message.content, order="C")
        description = _describe(array)
        # As bytes: a memoryview cannot be made of bfloat16, which numpy does not know.
        flat: Any = array.reshape(-1).view(np.uint8)
        data = memoryview(flat) if array.size else b""
    else:
        description, data = b"", message.content
    key = message.key
    header = _HEADER.pack(
        message.kind, message.plan, key.step, key.microbatch, key.edge, len(description), memoryview(data).nbytes
    )
    return [header + description, data]


def receive(connection: socket.socket) -> Message | None:
    """Wait for a message; None when the other end has closed the connection."""
    header = bytearray(_HEADER.size)
    if not _fill(connection, header):
        return None
    kind, plan, step, microbatch, edge, described, size = _HEADER.unpack(header)
    description = bytearray(described)
    data = _aligned(size)
    if not (_fill(connection, description) and _fill(connection, data)):
        return None
    key = Key(step, microbatch, edge)
    if kind == Kind.TENSOR:
        return Message(Kind.TENSOR, plan, key, _restored(bytes(description), data))
    return Message(Kind(kind), plan, key, data.tobytes())


def _fill(connection: socket.socket, buffer: Any) -> bool:
    """Receive until the buffer is full; False when the connection ends before."""
    remaining = memoryview(buffer)
    while remaining.nbytes:
        received = connection.recv_into(remaining)
        if not received:
            return False
        remaining = remaining[received:]
    return True


def _aligned(size: int) -> Any:
    """Return uninitialized bytes at an address that TensorFlow takes over without a copy."""
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    # The slice keeps `room` alive.
    return room[start : start + size]


def _describe(array: Any) -> bytes:
    if array.dtype.hasobject:
        raise ParallelError(
            "a tensor of strings does not travel between ranks: pass it to the step as an argument, because every rank"
            " has the arguments"
        )
    # `dtype.str` of a type that numpy does not know says only its size.
    name = array.dtype.name if array.dtype.char not in _PLAIN else array.dtype.str
    description: bytes = struct.pack(f"<B{array.ndim}q", array.ndim, *array.shape) + name.encode()
    return description


def _restored(description: bytes, data: Any) -> Any:
    dimensions = description[0]
    shape = struct.unpack_from(f"<{dimensions}q", description, 1)
    return data.view(np.dtype(description[1 + 8 * dimensions :].decode())).reshape(shape)


def send_available(connection: socket.socket, buffers: list[Any]) -> list[Any]:
    """Send the bytes that the kernel takes without waiting, and return the rest."""
    rest = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    # A full buffer raises BlockingIOError. A broken connection raises as well; the writer then sees the same error.
    with contextlib.suppress(OSError):
        while rest:
            sent = connection.sendmsg(rest, (), socket.MSG_DONTWAIT)
            while rest and sent >= rest[0].nbytes:
                sent -= rest.pop(0).nbytes
            if rest:
                rest[0] = rest[0][sent:]
    return rest
