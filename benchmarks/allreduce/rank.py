"""One rank of one method. run.py starts each sum with a JSON line over a Unix socket; the rank answers with its times.

Usage: python rank.py METHOD RANK; run.py sets addresses in the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Reduce = Callable[[np.ndarray[Any, Any]], None]


def ours(*_: int) -> Reduce:
    from herringbone_parallel.reduce.join.settings import Settings
    from herringbone_parallel.reduce.joining import join
    from herringbone_parallel.reduce.probing import measure

    engine = join(Settings.from_environment())
    measure(engine)  # as the adaptors do: the engine fits its chunks and windows to the measured links
    return lambda array: engine.all_reduce(array).wait(120)


def gloo(rank: int, size: int) -> Reduce:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    return lambda array: dist.all_reduce(torch.from_numpy(array))


def mpi_ring(rank: int, size: int) -> Reduce:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (world.rank, world.size) == (rank, size)
    return lambda array: world.Allreduce(MPI.IN_PLACE, array)


METHODS = {"ours": ours, "gloo": gloo, "mpi_ring": mpi_ring}


def main() -> None:
    method = sys.argv[1]
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if method == "mpi_ring" else sys.argv[2])
    size = int(os.environ["WORLD_SIZE"])
    # Connect before the import of a framework, which takes seconds: run.py waits for each rank's connection.
    control = socket.socket(socket.AF_UNIX)
    control.connect(os.environ["CONTROL"])
    lines = control.makefile("r")
    control.sendall(json.dumps({"method": method, "rank": rank, "pid": os.getpid()}).encode() + b"\n")
    reduce = METHODS[method](rank, size)
    control.sendall(b"{}\n")
    small = np.zeros(1, np.float32)
    for line in lines:
        request = json.loads(line)
        count = request["count"]
        array = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
        reduce(small)  # a barrier: all ranks start the timed sum together
        began, cpu = time.perf_counter(), time.process_time()
        reduce(array)
        result = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        result["digest"] = hashlib.sha256(array.tobytes()).hexdigest()
        if request["check"]:
            result["error"], result["root"] = error_of(array, count, size)
        control.sendall(json.dumps(result).encode() + b"\n")


def error_of(array: np.ndarray[Any, Any], count: int, size: int) -> tuple[float, float]:
    """Return the largest difference to the sum in fp64, and the root mean square of the fp64 sum."""
    exact = np.zeros(count)
    for rank in range(size):
        exact += np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    return float(np.abs(array - exact).max()), float(np.sqrt(np.mean(exact**2)))


if __name__ == "__main__":
    main()
