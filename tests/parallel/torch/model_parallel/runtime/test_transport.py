"""The transport of a pipeline, between two ranks in one process over queues."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.distributed as dist

from herringbone_parallel.torch.model_parallel.runtime.messages import Key, Purpose
from herringbone_parallel.torch.model_parallel.runtime.transport import Transport

MESSAGES = 8000


class Work:
    """A send that has left, or a receive that waits in `wait`."""

    def __init__(self, queue: SimpleQueue[Any] | None = None, buffer: torch.Tensor | None = None) -> None:
        self._queue, self._buffer = queue, buffer

    def wait(self) -> None:
        if self._queue is None or self._buffer is None:
            return
        message = self._queue.get()
        if message is None:
            raise RuntimeError("the connection is closed")
        self._buffer[: message.numel()].copy_(message)


class Group:
    """The process group of one rank; `sends` are the works that are still referenced."""

    def __init__(self, rank: int, queues: defaultdict[Any, SimpleQueue[Any]]) -> None:
        self._rank, self._queues = rank, queues
        self.sends: weakref.WeakSet[Work] = weakref.WeakSet()

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        self._queues[self._rank, peer, tag].put(tensors[0].clone())
        work = Work()
        self.sends.add(work)
        return work

    def recv(self, buffers: list[torch.Tensor], peer: int, tag: int) -> Work:
        return Work(self._queues[peer, self._rank, tag], buffers[0])


def test_many_tiny_messages_are_answered_before_their_headers_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: defaultdict[Any, SimpleQueue[Any]] = defaultdict(SimpleQueue)
    groups: list[Any] = [Group(0, queues), Group(1, queues)]
    ends = []
    for rank, group in enumerate(groups):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        ends.append(Transport([0, 1], group))
    received = [0]
    ends[1].listen(1, lambda *_: received.__setitem__(0, received[0] + 1))
    for serial in range(MESSAGES):
        ends[0].send_tensor(1, Key(1, 0, serial, Purpose.VALUE), torch.zeros(1))
    until = time.monotonic() + 60
    # The second rank sends nothing of its own.
    while (received[0] < MESSAGES or len(groups[0].sends) > MESSAGES // 2) and time.monotonic() < until:
        ends[0].reap()
        time.sleep(0.01)
    for source, target in ((0, 1), (1, 0)):
        queues[source, target, 0].put(None)
    assert received == [MESSAGES]
    assert len(groups[0].sends) <= MESSAGES // 2
