"""`SMP_TIMELINE` for TensorFlow: the ranks send their events to rank 0 over the transport."""

from __future__ import annotations

import struct
import time
import warnings
from collections.abc import Mapping

from herringbone_parallel.tensorflow.model_parallel.runtime.transport import PeerFailedError, Transport
from herringbone_parallel.timeline import PINGS, VARIABLE, Timeline, ahead_s, expanded, file_for

_GATHER_SECONDS = 5
_CLOCK = struct.Struct("<d")


def open_timeline(rank: int, transport: Transport | None, environ: Mapping[str, str]) -> Timeline | None:
    """Return the timeline that rank 0's environment asks for, else None; every rank of the job must call it.

    Raises `ParallelError` when its folder cannot be created.
    """
    # Rank 0's environment decides for all ranks: hosts may differ, and every rank must take part or none.
    path = environ.get(VARIABLE, "") if rank == 0 else ""
    if path:
        file_for(path)
    if transport is None:
        return Timeline(expanded(path), rank, 0.0) if path else None
    if rank != 0:
        path = transport.receive_object(0).decode()
        return Timeline(expanded(path), rank, ahead_s(lambda: _ask_time(transport))) if path else None
    for peer in transport.peers:
        transport.send_object(peer, path.encode())
        transport.wait_for_receipt(peer)
        # Rank 0 serves one rank at a time, so that it answers each ping at once: the round trip is what is measured.
        for _ in range(PINGS if path else 0):
            transport.receive_object(peer)
            transport.send_object(peer, _CLOCK.pack(time.monotonic()))
            transport.wait_for_receipt(peer)
    return Timeline(expanded(path), rank, 0.0) if path else None


def hand_in(timeline: Timeline, transport: Transport | None) -> None:
    """Send this rank's events to rank 0; rank 0 writes the trace of all ranks that send theirs within seconds."""
    if timeline.rank != 0:
        assert transport is not None, "a rank besides the first has peers"
        transport.send_object(0, timeline.encoded())
        return
    events, missing = [], []
    until = time.monotonic() + _GATHER_SECONDS
    for rank in [] if transport is None else transport.peers:
        assert transport is not None
        try:
            events.append(transport.receive_object(rank, max(0.1, until - time.monotonic())))
        except PeerFailedError:
            # A rank that died must not cost the others their trace.
            missing.append(rank)
    timeline.write(events)
    if missing:
        warnings.warn(f"{timeline.path} lacks the ranks {missing}, which sent no events", stacklevel=2)


def _ask_time(transport: Transport) -> float:
    """Return rank 0's time, in seconds of its monotonic clock."""
    transport.send_object(0, b"")
    transport.wait_for_receipt(0)
    seconds: float = _CLOCK.unpack(transport.receive_object(0))[0]
    return seconds
