"""Sends under way to each peer, until the peer's own messages say that they have arrived.

rank 0   message 1 --->              every message carries the number of messages that its sender has received
         message 2 --->  rank 1
         <--- "2 received"           rank 0 releases messages 1 and 2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

Work = TypeVar("Work")


class _Sent(NamedTuple, Generic[Work]):
    number: int
    works: Sequence[Work]


class Sends(Generic[Work]):
    """The sends of one rank; a message may be several works, such as a header and its content.

        sends = Sends[object]([1])
        sends.add(1, [work])            # message 1 to peer 1
        sends.acknowledge(1, 1)         # peer 1 has received one message
        sends.pop_acknowledged()        # [work]

    The caller serialises all calls but `acknowledge`, which one thread per peer may call at any time.
    """

    def __init__(self, peers: Sequence[int]) -> None:
        self._sent: dict[int, deque[_Sent[Work]]] = {peer: deque() for peer in peers}
        self._numbers = dict.fromkeys(peers, 0)
        self._acknowledged = dict.fromkeys(peers, 0)

    def add(self, peer: int, works: Sequence[Work]) -> None:
        """Note the works of the next message to a peer."""
        self._numbers[peer] += 1
        self._sent[peer].append(_Sent(self._numbers[peer], works))

    def acknowledge(self, peer: int, count: int) -> None:
        """Note that a peer has received `count` messages by now."""
        self._acknowledged[peer] = count

    def pop_acknowledged(self) -> list[Work]:
        """Remove the works of all messages that have arrived, and return them."""
        return self._pop(self._acknowledged)

    def pop_all(self) -> list[Work]:
        """Remove all works and return them."""
        return self._pop(self._numbers)

    def _pop(self, up_to: dict[int, int]) -> list[Work]:
        works: list[Work] = []
        for peer, sent in self._sent.items():
            while sent and sent[0].number <= up_to[peer]:
                works += sent.popleft().works
        return works
