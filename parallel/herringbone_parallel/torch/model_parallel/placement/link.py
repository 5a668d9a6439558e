"""The link between two ranks of the pipeline: its latency and bandwidth, measured with messages."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from herringbone_parallel.core.partition.costs import Link

_SMALL_BYTES, _SMALL_TRIPS = 4096, 10
_LARGE_BYTES, _LARGE_TRIPS = 4 << 20, 4


def clock_link(ranks: tuple[int, ...], group: dist.ProcessGroup, device: torch.device) -> Link:
    """Measure the link from the first of the global ranks to the second; all of them must call it.

    It takes the quickest of a few small and a few large round trips. Only the first two ranks return a measured link.
    """
    small, large = (
        _round_trip(ranks, group, device, size, trips) / 2
        for size, trips in ((_SMALL_BYTES, _SMALL_TRIPS), (_LARGE_BYTES, _LARGE_TRIPS))
    )
    rest = max(large - small, 1e-9)
    return Link(seconds=small, bytes_per_second=(_LARGE_BYTES - _SMALL_BYTES) / rest)


def _round_trip(ranks: tuple[int, ...], group: dist.ProcessGroup, device: torch.device, size: int, trips: int) -> float:
    ball = torch.zeros(size, dtype=torch.uint8, device=device)
    rank = dist.get_rank()
    if rank not in ranks[:2]:
        return 0.0
    quickest = float("inf")
    for _ in range(trips):
        start = time.perf_counter()
        if rank == ranks[0]:
            dist.send(ball, ranks[1], group=group)
            dist.recv(ball, ranks[1], group=group)
            # A GPU only queues its messages; reading one byte waits until the message has arrived.
            ball[0].item()
        else:
            dist.recv(ball, ranks[0], group=group)
            dist.send(ball, ranks[0], group=group)
        quickest = min(quickest, time.perf_counter() - start)
    return quickest
