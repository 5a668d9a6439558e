"""Memory that the ranks of one host share: each rank that carries a lane owns an arena, to which the others write.

An arena has no name in any file system. Its descriptor travels to the other ranks over their connection, so a killed
job leaves nothing behind, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import tempfile

from herringbone_contract.errors import ParallelError


class Arena:
    """`slots` areas of `size` bytes each, mapped into this process.

    >>> arena = Arena.create(2, 64)
    >>> arena.address(1) - arena.address(0)
    64
    >>> arena.close()
    """

    def __init__(self, descriptor: int, slots: int, size: int) -> None:
        self.descriptor = descriptor
        self._size = size
        self._memory = mmap.mmap(descriptor, slots * size)
        # The core works with addresses; the map has to live as long as the core, and the engine sees to that.
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @classmethod
    def create(cls, slots: int, size: int) -> Arena:
        """Allocate an arena in anonymous memory; pages that are never written are never allocated."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("herringbone-reduce")
        else:
            # Python builds against an old C library lack memfd_create; an unlinked file works the same way.
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, slots * size)
        return cls(descriptor, slots, size)

    def address(self, slot: int) -> int:
        """Return the address of an area's first byte."""
        return self._start + slot * self._size

    def close(self) -> None:
        """Close the descriptor. The map stays until the object is collected, because views may still point into it."""
        os.close(self.descriptor)


def slot_of(contributor: int, owner: int) -> int:
    """Return the area of `owner`'s arena to which a local rank writes. Pure.

    >>> [slot_of(contributor, owner=1) for contributor in (0, 2, 3)]
    [0, 1, 2]

    The owner needs no area in its own arena: its elements are in its buffer.
    """
    return contributor - (contributor > owner)


def swap(connection: socket.socket, own: Arena | None, slots: int, size: int) -> Arena | None:
    """Exchange arenas with the rank at the other end of a Unix socket; None means that a side has no arena."""
    # A descriptor can only travel together with at least one byte, so that byte says whether there is one.
    socket.send_fds(connection, [b"+" if own else b"-"], [own.descriptor] if own else [])
    mark, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if mark == b"-":
        return None
    if mark != b"+" or not descriptors:
        raise ParallelError(
            "a rank of this host did not hand over its shared memory: were all ranks started by the same launcher?"
        )
    return Arena(descriptors[0], slots, size)
