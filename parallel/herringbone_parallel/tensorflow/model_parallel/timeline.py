"""`SMP_TIMELINE` for TensorFlow: what the ranks have travels to rank 0 as mail."""

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
    """Return the timeline that rank 0's environment asks for, None if it does not; every rank of the job must call it.

    Raises `ParallelError` when its folder cannot be made.
    """
    asked = environ.get(VARIABLE, "") if rank == 0 else ""
    if asked:
        file_for(asked)
    if transport is None:
        return Timeline(expanded(asked), rank, 0.0) if asked else None
    if rank != 0:
        asked = transport.receive_object(0).decode()
        return Timeline(expanded(asked), rank, ahead_s(lambda: _ask(transport))) if asked else None
    for peer in transport.peers:
        transport.send_object(peer, asked.encode())
        transport.wait_for_receipt(peer)
        for _ in range(PINGS if asked else 0):
            transport.receive_object(peer)
            transport.send_object(peer, _CLOCK.pack(time.monotonic()))
            transport.wait_for_receipt(peer)
    return Timeline(expanded(asked), rank, 0.0) if asked else None


def hand_in(timeline: Timeline, transport: Transport | None) -> None:
    """Give rank 0 what there is; on rank 0, write the trace of all ranks that hand something in within seconds."""
    if timeline.rank != 0:
        assert transport is not None, "a rank besides the first has peers"
        transport.send_object(0, timeline.encoded())
        return
    others, missing = [], []
    until = time.monotonic() + _GATHER_SECONDS
    for rank in [] if transport is None else transport.peers:
        assert transport is not None
        try:
            others.append(transport.receive_object(rank, max(0.1, until - time.monotonic())))
        except PeerFailedError:
            missing.append(rank)
    timeline.write(others)
    if missing:
        warnings.warn(f"{timeline.path} lacks the ranks {missing}, which handed nothing in", stacklevel=2)


def _ask(transport: Transport) -> float:
    """Return rank 0's time."""
    transport.send_object(0, b"")
    transport.wait_for_receipt(0)
    seconds: float = _CLOCK.unpack(transport.receive_object(0))[0]
    return seconds
