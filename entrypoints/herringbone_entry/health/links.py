"""Sum a bucket over the hosts with torch's own backend, then measure each host's links to the next two hosts.

All hosts make the same calls in the same order: they agree on sizes, and the rounds follow from the number of hosts.
"""

from __future__ import annotations

import importlib
import time
from datetime import timedelta
from typing import Any

from herringbone_contract.faults.health import SLOW_LINK

# The size of a bucket of torch's DistributedDataParallel, and one that a slow network sums, too.
_BUCKET_BYTES, _SMALL_BYTES = 25 << 20, 1 << 20
# Of a message over one link. The first one opens the connection.
_MESSAGE_PART, _MESSAGES = 12, 3
# A bucket that would take longer is not summed.
_PATIENCE_SECONDS = 2.0
# Links are measured again as long as one seems slow, so often at most: another program may have had the processors.
_REPEATS = 4


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Return links (from, to) of each host to the next two, in rounds in which no host has two of them.

    >>> rounds(2), rounds(4)[:2]
    ([[(0, 1)], [(1, 0)]], [[(0, 1), (2, 3)], [(1, 2), (3, 0)]])
    """
    waiting = [(host, (host + step) % hosts) for step in (1, 2) if step < hosts for host in range(hosts)]
    result: list[list[tuple[int, int]]] = []
    while waiting:
        busy, chosen = set[int](), list[tuple[int, int]]()
        for link in waiting:
            if busy.isdisjoint(link):
                busy.update(link)
                chosen.append(link)
        waiting = [link for link in waiting if link not in chosen]
        result.append(chosen)
    return result


def measure(
    torch: Any, hosts: list[str], rank: int, address: str, port: int, backend: str, limit: float
) -> dict[str, Any]:
    """Return the part of a host's report about the network; it is number `rank` of `hosts`, and waits for `limit`.

    The first host listens at the address and port. Raises whatever torch does, such as for a host that never comes.
    """
    dist = importlib.import_module("torch.distributed")
    timeout = timedelta(seconds=limit)
    store = dist.TCPStore(address, port, len(hosts), rank == 0, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=len(hosts), timeout=timeout)
    device = "cuda:0" if backend == "nccl" else "cpu"

    def wait() -> float:
        if backend == "nccl":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def summed(size: int) -> tuple[float, bool]:
        values = torch.full((size // 4,), rank + 1.0, device=device)
        dist.barrier()
        begin = wait()
        dist.all_reduce(values)
        return wait() - begin, bool((values == len(hosts) * (len(hosts) + 1) / 2).all())

    summed(_SMALL_BYTES)
    size, (seconds, is_sum) = _SMALL_BYTES, summed(_SMALL_BYTES)
    slowest = torch.tensor([seconds], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if float(slowest) * _BUCKET_BYTES / _SMALL_BYTES < _PATIENCE_SECONDS:
        size = _BUCKET_BYTES
        seconds, is_sum = summed(size)
    speeds: dict[str, float] = {}
    message = torch.zeros(size // _MESSAGE_PART, dtype=torch.uint8, device=device)
    for _ in range(_REPEATS):
        for links in rounds(len(hosts)):
            dist.barrier()
            for source, target in links:
                if rank == source:
                    for _ in range(1 + _MESSAGES):
                        dist.send(message, target)
                    wait()
                elif rank == target:
                    dist.recv(message, source)
                    begin = wait()
                    for _ in range(_MESSAGES):
                        dist.recv(message, source)
                    speed = _MESSAGES * message.numel() / (wait() - begin)
                    speeds[hosts[source]] = max(speed, speeds.get(hosts[source], 0.0))
        ends = torch.tensor([max(speeds.values()), -min(speeds.values())], device=device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        if -float(ends[1]) >= SLOW_LINK * float(ends[0]):
            break
    # Without a last meeting, a host that is done would break the others' connections.
    dist.barrier()
    return {"seconds": seconds, "bytes": size, "is_sum": is_sum, "speeds": speeds}
