"""Sends are held until the peer's count of received messages includes them."""

from __future__ import annotations

from herringbone_parallel.core.pipeline.sends import Sends


def test_each_peer_releases_its_own_messages_in_their_order() -> None:
    sends = Sends[str]([0, 2])
    sends.add(0, ["a"])
    sends.add(2, ["b header", "b content"])
    sends.add(0, ["c"])
    sends.add(2, ["d"])
    assert sends.pop_acknowledged() == []
    sends.acknowledge(2, 1)
    assert sends.pop_acknowledged() == ["b header", "b content"]
    sends.acknowledge(0, 2)
    assert sends.pop_acknowledged() == ["a", "c"]
    assert sends.pop_all() == ["d"]
    # The peer counts on after a flush.
    sends.add(2, ["e"])
    sends.acknowledge(2, 2)
    assert sends.pop_acknowledged() == []
    sends.acknowledge(2, 3)
    assert sends.pop_acknowledged() == ["e"]
