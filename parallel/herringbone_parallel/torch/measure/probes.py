"""Time what ranks do besides the steps of the script: copies, and messages between the processes of this machine.

    copied_bytes_per_second()
    collectives()                       # {"all_reduce": Link(...), ...}

All figures are processor time, so that other programs of the machine do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.prediction.devices import Link

_REPEATS = 7
_COPIED = 1 << 26
_SIZES = (1 << 16, 1 << 23)
# A message of no bytes still takes time, and no link is infinitely fast.
_LEAST_LATENCY, _MOST_BYTES_PER_SECOND = 1e-6, 1e11


def copied_bytes_per_second() -> float:
    """Return the bytes that one thread copies in a second."""
    source, target = torch.ones(_COPIED // 4), torch.zeros(_COPIED // 4)
    return _COPIED / median(_seconds(lambda: target.copy_(source)) for _ in range(_REPEATS))


def collectives() -> dict[str, Link]:
    """Return the costs of messages between the processes of this machine, as steps of a ring and by message.

    The processes have a group. The time of gloo's own threads is counted.
    """
    processes = dist.get_world_size()
    return {name: _link(name, processes) for name in ("all_reduce", "all_gather", "reduce_scatter", "send")}


def _link(name: str, processes: int) -> Link:
    seconds = [_collective_s(name, size, processes) for size in _SIZES]
    # The steps of a ring, and the part of the bytes that each of them moves.
    steps = {"all_reduce": 2 * (processes - 1), "send": 1}.get(name, processes - 1)
    parts = [size if name == "send" else size / processes for size in _SIZES]
    each = [time_s / steps for time_s in seconds]
    per_byte = max((each[1] - each[0]) / (parts[1] - parts[0]), 1 / _MOST_BYTES_PER_SECOND)
    return Link(latency_s=max(_LEAST_LATENCY, each[0] - parts[0] * per_byte), bytes_per_second=1 / per_byte)


def _collective_s(name: str, size: int, processes: int) -> float:
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // processes)
    rank = dist.get_rank()

    def send() -> None:
        # Each process sends to the next one and receives from the one before, so all are alike.
        request = dist.isend(whole, (rank + 1) % processes)
        dist.recv(torch.empty_like(whole), (rank - 1) % processes)
        assert request is not None
        request.wait()

    # Later releases of torch have new names, and warn about the old ones.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    together = whole[: part.numel() * processes]
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: gather(together, part),
        "reduce_scatter": lambda: scatter(part, together),
        "send": send,
    }
    calls[name]()
    # Short messages scatter more.
    repeats = _REPEATS if size > _SIZES[0] else 4 * _REPEATS
    # The lower quartile, because other programs of the machine only make messages dearer.
    return sorted(_seconds(calls[name], time.process_time) for _ in range(repeats))[repeats // 4]


def _seconds(call: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    start = clock()
    call()
    return clock() - start
