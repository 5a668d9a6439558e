"""The transport of a pipeline, between two ranks in one process over queues."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from queue import SimpleQueue
from typing import Any

import torch

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
    """The process group of one rank; `sends` are the works that are still referenced, `gone` the peers that died."""

    def __init__(self, rank: int, queues: defaultdict[Any, SimpleQueue[Any]]) -> None:
        self._rank, self._queues = rank, queues
        self.sends: weakref.WeakSet[Work] = weakref.WeakSet()
        self.gone: set[int] = set()

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        if peer in self.gone:
            raise RuntimeError("the connection is closed")
        self._queues[self._rank, peer, tag].put(tensors[0].clone())
        work = Work()
        self.sends.add(work)
        return work

    def recv(self, buffers: list[torch.Tensor], peer: int, tag: int) -> Work:
        return Work(self._queues[peer, self._rank, tag], buffers[0])


def test_many_tiny_messages_are_answered_before_their_headers_fill_the_memory() -> None:
    queues: defaultdict[Any, SimpleQueue[Any]] = defaultdict(SimpleQueue)
    groups: list[Any] = [Group(0, queues), Group(1, queues)]
    ends = [Transport(rank, [0, 1], group) for rank, group in enumerate(groups)]
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


def test_a_send_to_a_peer_that_is_gone_leaves_it_to_the_receiving_thread_to_say_so() -> None:
    queues: defaultdict[Any, SimpleQueue[Any]] = defaultdict(SimpleQueue)
    group: Any = Group(0, queues)
    transport = Transport(0, [0, 1, 2], group)
    heard: SimpleQueue[Any] = SimpleQueue()
    transport.listen(1, lambda source, key, content: heard.put((source, key.purpose, content)))
    # gloo refuses the sends before the thread that receives from the peer wakes up.
    group.gone.add(1)
    for peer in transport.peers:
        transport.send_object(peer, Key(1, 0, 0, Purpose.FAILURE), "the reason")
    transport.release()
    assert not queues[0, 2, 0].empty()
    queues[1, 0, 0].put(None)
    source, purpose, reason = heard.get(timeout=60)
    assert (source, purpose) == (0, Purpose.FAILURE)
    assert "lost contact with pipeline rank 1" in reason
    queues[2, 0, 0].put(None)
