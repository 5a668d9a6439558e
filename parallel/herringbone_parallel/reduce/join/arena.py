"""Memory that ranks of one host share: each that carries a lane has an arena that the others write their chunks to.

No name in any file system: its descriptor is given to the others over their connection, so nothing is left behind and
the size of /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import tempfile

from herringbone_contract.errors import ParallelError


class Arena:
    """`slots` areas of `size` bytes each, mapped here.

    >>> arena = Arena.create(2, 64)
    >>> arena.address(1) - arena.address(0)
    64
    >>> arena.close()
    """

    def __init__(self, descriptor: int, slots: int, size: int) -> None:
        self.descriptor = descriptor
        self._size = size
        self._memory = mmap.mmap(descriptor, slots * size)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @classmethod
    def create(cls, slots: int, size: int) -> Arena:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("herringbone-reduce")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, slots * size)
        return cls(descriptor, slots, size)

    def address(self, slot: int) -> int:
        return self._start + slot * self._size

    def close(self) -> None:
        os.close(self.descriptor)


def place_of(contributor: int, owner: int) -> int:
    """Return which area of `owner`'s arena a local rank writes to; the owner itself needs none. Pure.

    >>> [place_of(contributor, owner=1) for contributor in (0, 2, 3)]
    [0, 1, 2]
    """
    return contributor - (contributor > owner)


def swap(connection: socket.socket, own: Arena | None, slots: int, size: int) -> Arena | None:
    """Give the other end of a local connection one's arena and take its own; None is none, either way."""
    socket.send_fds(connection, [b"+" if own else b"-"], [own.descriptor] if own else [])
    word, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if word == b"-":
        return None
    if word != b"+" or not descriptors:
        raise ParallelError("a rank of this host did not hand over its memory: was it started by other hands?")
    return Arena(descriptors[0], slots, size)
