"""Broadcast, gather, barrier and agreement, built from sums of integers: adding zeros changes no bit."""

from __future__ import annotations

import hashlib

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine


def broadcast(engine: Engine, array: Array, root: int = 0, timeout: float | None = None) -> None:
    """Give all ranks the root's array, in place and bit by bit, whatever its type.

    It costs as much as a sum of that size. Raises `ParallelError` for a root that is no rank, and for an array that is
    not contiguous.
    """
    if not 0 <= root < engine.size:
        raise ParallelError(f"root {root}: ranks are 0 to {engine.size - 1}")
    if not array.flags.c_contiguous:
        raise ParallelError("the array of a broadcast must be contiguous, because it is filled in place")
    # As bytes: a sum of floats would turn -0.0 into 0.0 and could change the bits of NaNs.
    data = array.reshape(-1).view(np.uint8)
    if engine.rank != root:
        data[:] = 0
    engine.all_reduce(data).wait(timeout)


def all_gather(engine: Engine, data: bytes, timeout: float | None = None) -> list[bytes]:
    """Return the bytes of each rank, in the order of ranks; their lengths may differ.

    >>> all_gather(engine, b"spam")         # doctest: +SKIP
    [b'spam', b'spam']
    """
    sizes = np.zeros(engine.size, np.int64)
    sizes[engine.rank] = len(data)
    engine.all_reduce(sizes).wait(timeout)
    # Each rank fills its part of one array, and the others add zeros to it.
    ends = np.cumsum(sizes)
    joined = np.zeros(int(ends[-1]), np.uint8)
    joined[ends[engine.rank] - len(data) : ends[engine.rank]] = np.frombuffer(data, np.uint8)
    engine.all_reduce(joined).wait(timeout)
    return [joined[end - size : end].tobytes() for size, end in zip(sizes, ends, strict=True)]


def barrier(engine: Engine, timeout: float | None = None) -> None:
    """Wait until all ranks have called it."""
    engine.all_reduce(np.zeros(1, np.uint8)).wait(timeout)


def agree(engine: Engine, what: str, value: str, timeout: float | None = None) -> None:
    """Check that all ranks have the same value; otherwise raises `ParallelError` on all of them, naming two ranks.

        agree(engine, "the parameters", "\\n".join(f"{name} {shape} {dtype}" for ...))

    Values are compared line by line, so that the message can show the first line that differs.
    """
    # Digests first: whole values travel only if they differ.
    digest = hashlib.sha256(value.encode()).digest()
    digests = all_gather(engine, digest, timeout)
    if len(set(digests)) == 1:
        return
    values = [text.decode() for text in all_gather(engine, value.encode(), timeout)]
    other = next(rank for rank in range(engine.size) if values[rank] != values[0])
    ours, theirs = values[0].split("\n"), values[other].split("\n")
    line = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    shown = [lines[line] if line < len(lines) else "nothing more" for lines in (ours, theirs)]
    raise ParallelError(
        f"ranks disagree on {what}: at position {line}, {engine.topology.label(0)} has {shown[0]!r} and "
        f"{engine.topology.label(other)} has {shown[1]!r}"
    )
