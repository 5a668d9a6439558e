"""The I/O thread of the Python core, one step at a time."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from herringbone_parallel.reduce.cores.base import CoreConfig, Limit, LinkSpec, Role
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.cores.python_core import PythonCore

ENDS = list[socket.socket]


class SteppedCore(PythonCore):
    """A core whose thread ends at once: the test takes the thread's steps."""

    def _run(self) -> None:
        pass


@pytest.fixture
def helper() -> Iterator[tuple[PythonCore, ENDS]]:
    """Yield a helper's core of three hosts, and the hosts' ends of its connections."""
    pairs = [socket.socketpair() for _ in range(3)]
    links = tuple(LinkSpec(pair[0].detach(), Role.PEER, index, f"rank {index}") for index, pair in enumerate(pairs))
    limits = Limit(4096, 8), Limit(0, 0)
    core = SteppedCore(CoreConfig("helper", -1, 3, 0, 0, 1, 1, 0, 1024, *limits, silence=60, late=60, links=links))
    ends = [pair[1] for pair in pairs]
    for end in ends:
        end.setblocking(False)
    yield core, ends
    for end in ends:
        end.close()
    for stream in core._streams:
        stream.close()
    core._selector.close()


def test_a_process_that_is_gone_keeps_no_sign_of_life_from_the_next_one(helper: tuple[PythonCore, ENDS]) -> None:
    """Regression: the list of connections lost an item while it was walked through, and the next one was skipped."""
    core, ends = helper
    ends[0].sendall(Header(Kind.LEAVE, sequence=0).pack())
    core._turn()
    assert Header.unpack(ends[0].recv(LAYOUT.size)).kind == Kind.LEFT
    ends[0].close()
    core._tick(time.monotonic() + 1.0)
    assert [Header.unpack(end.recv(LAYOUT.size)).kind for end in ends[1:]] == [Kind.ALIVE, Kind.ALIVE]
    assert [stream.spec.index for stream in core._streams] == [1, 2]


def test_a_silent_process_behind_one_that_is_gone_is_noticed(helper: tuple[PythonCore, ENDS]) -> None:
    core, ends = helper
    ends[0].sendall(Header(Kind.LEAVE, sequence=0).pack())
    core._turn()
    ends[0].close()
    now = time.monotonic() + 100
    core._streams[2].received_s = now
    with pytest.raises(Exception, match="rank 1 stopped answering helper"):
        core._tick(now)


@contextlib.contextmanager
def room_for_files(count: int) -> Iterator[None]:
    """Let this process open `count` files more."""
    limits, opened = resource.getrlimit(resource.RLIMIT_NOFILE), [os.open("/", os.O_RDONLY) for _ in range(count + 1)]
    for descriptor in opened:
        os.close(descriptor)
    # The kernel gives the lowest free numbers, and none from the limit on.
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_core_that_cannot_start_leaves_nothing_behind() -> None:
    """Regression: without descriptors for its pipes, the core kept the links, and the ranks waited for it."""
    ours, theirs = socket.socketpair()
    with theirs:
        gc.collect()  # what earlier tests left
        before = len(os.listdir("/proc/self/fd"))
        links = (LinkSpec(ours.detach(), Role.PEER, 0, "rank 0"),)
        limits = Limit(4096, 8), Limit(0, 0)
        # For one pipe of two.
        with room_for_files(2), pytest.raises(OSError, match="Too many open files"):
            PythonCore(CoreConfig("helper", -1, 1, 0, 0, 1, 1, 0, 1024, *limits, silence=60, late=60, links=links))
        assert theirs.recv(1) == b""
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before - 1
