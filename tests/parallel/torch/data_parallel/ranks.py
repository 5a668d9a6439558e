"""Ranks of the data-parallel library as a launcher starts them: processes with the contract's variables."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.parallel.torch.processes import PROCESSES
from tests.parallel.torch.ranks import RankFailedError, free_port


def _serve(connection: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    # Freeze the objects of all imports: a collection over them would take longer than most tests.
    gc.freeze()
    while (call := connection.recv()) is not None:
        port, function, args = call
        # A new port for each run: a rank that is early must not connect to the store of the last run.
        os.environ["MASTER_PORT"] = str(port)
        try:
            connection.send((True, function(*args)))
        except BaseException:  # noqa: BLE001  the test gets the traceback
            connection.send((False, traceback.format_exc()))
        finally:
            part()
            gc.collect()


def part() -> None:
    """Leave the groups that a function has joined, even if it failed."""
    import torch.distributed as dist

    from herringbone_parallel.torch.horovod import api as horovod

    horovod.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()


class JobRanks:
    """`count` processes that run module-level functions, each as one rank of the same job.

    >>> ranks.run(function, 7)              # doctest: +SKIP
    [what rank 0 returned, what rank 1 returned]
    """

    def __init__(self, count: int, folder: Path, **settings: str) -> None:
        self.count = count
        token = folder / "token"
        token.write_text("a token of this test")
        environment = {
            "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
            "HERRINGBONE_REDUCE_MEET": f"127.0.0.1:{free_port()}", "HERRINGBONE_REDUCE_TOKEN_FILE": str(token),
            "GLOO_SOCKET_IFNAME": "lo", **settings,
        }  # fmt: skip
        self.processes, self._connections = [], []
        for rank in range(count):
            near, far = PROCESSES.Pipe()
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
            process = PROCESSES.Process(target=_serve, args=(far, variables), daemon=True)
            process.start()
            far.close()
            self.processes.append(process)
            self._connections.append(near)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Start the function on all ranks."""
        port = free_port()
        for connection in self._connections:
            connection.send((port, function, args))

    def answer(self, rank: int, limit: float = 60) -> tuple[bool, Any]:
        """Return True and the rank's result, or False and its traceback, "died" or "silent"."""
        connection = self._connections[rank]
        try:
            return connection.recv() if connection.poll(limit) else (False, "silent")
        except EOFError:
            return False, "died"

    def answers(self, limit: float = 60) -> list[tuple[bool, Any]]:
        """Return the answers of all ranks."""
        return [self.answer(rank, limit) for rank in range(self.count)]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run the function on all ranks; return their results, or raise with their tracebacks."""
        self.start(function, *args)
        answers = self.answers()
        failed = [f"rank {rank}:\n{text}" for rank, (well, text) in enumerate(answers) if not well]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [result for _, result in answers]

    def ended(self, rank: int, limit: float = 30) -> int | None:
        """End that rank's process; return its exit code, or None if it does not end."""
        self._connections[rank].send(None)
        self.processes[rank].join(limit)
        return self.processes[rank].exitcode

    def close(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.join()
