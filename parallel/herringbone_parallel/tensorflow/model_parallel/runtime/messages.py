"""What travels between two ranks: a header of fixed size, and bytes. No pickle: a tensor is its type, shape and data.

    kind, plan, step, microbatch, edge, length of the description, length of the data | description | data

A plan is what both ranks must have cut in the same manner for the numbers of edges to mean the same.
"""

from __future__ import annotations

import socket
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from herringbone_contract.errors import ParallelError

_HEADER = struct.Struct("<BIIIIIQ")
# What TensorFlow wants of a tensor's address.
_ALIGNMENT = 64
# The types that numpy itself has; bfloat16 and its like are known by name, once TensorFlow is imported.
_PLAIN = frozenset("?bhilqBHILQefdFD")


class Kind(IntEnum):
    """What a message is."""

    TENSOR = 0
    OBJECT = 1
    RECEIPT = 2
    FAILED = 3
    GOODBYE = 4


class Key(NamedTuple):
    """Which value this is: every rank numbers steps, microbatches and edges alike."""

    step: int = 0
    microbatch: int = 0
    edge: int = 0


class Message(NamedTuple):
    """One message; the data of a tensor is an array, that of others bytes."""

    kind: Kind
    plan: int
    key: Key
    content: Any


def parts(message: Message) -> list[Any]:
    """Return a message as buffers to be sent one behind the other; arrays are not copied."""
    if message.kind is Kind.TENSOR:
        array = np.asarray(message.content, order="C")
        described = _describe(array)
        flat: Any = array.reshape(-1).view(np.uint8)
        data = memoryview(flat) if array.size else b""
    else:
        described, data = b"", message.content
    key = message.key
    header = _HEADER.pack(
        message.kind, message.plan, key.step, key.microbatch, key.edge, len(described), memoryview(data).nbytes
    )
    return [header + described, data]


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
    left = memoryview(buffer)
    while left.nbytes:
        got = connection.recv_into(left)
        if not got:
            return False
        left = left[got:]
    return True


def _aligned(size: int) -> Any:
    """Return bytes at an address that TensorFlow takes over as it is."""
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]


def _describe(array: Any) -> bytes:
    if array.dtype.hasobject:
        raise ParallelError(
            "a tensor of strings does not travel between ranks: pass it to the step as an argument, as all have those"
        )
    name = array.dtype.name if array.dtype.char not in _PLAIN else array.dtype.str
    described: bytes = struct.pack(f"<B{array.ndim}q", array.ndim, *array.shape) + name.encode()
    return described


def _restored(description: bytes, data: Any) -> Any:
    dimensions = description[0]
    shape = struct.unpack_from(f"<{dimensions}q", description, 1)
    return data.view(np.dtype(description[1 + 8 * dimensions :].decode())).reshape(shape)
