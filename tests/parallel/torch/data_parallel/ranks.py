"""Ranks as a launcher starts them for the data-parallel library: processes with the contract's variables."""

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
    # Of the objects of all imports, a collection would take longer than most tests.
    gc.freeze()
    while (order := connection.recv()) is not None:
        port, function, args = order
        # A port a run: who comes early must not meet the store of the run before.
        os.environ["MASTER_PORT"] = str(port)
        try:
            connection.send((True, function(*args)))
        except BaseException:  # noqa: BLE001  the test hears of it
            connection.send((False, traceback.format_exc()))
        finally:
            part()
            gc.collect()


def part() -> None:
    """Leave what a function has joined, also one that failed."""
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
            here, there = PROCESSES.Pipe()
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
            process = PROCESSES.Process(target=_serve, args=(there, own), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self._connections.append(here)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        port = free_port()
        for connection in self._connections:
            connection.send((port, function, args))

    def answer(self, rank: int, limit: float = 60) -> tuple[bool, Any]:
        """Return whether that rank returned, and what, or its traceback, or that it died or is silent."""
        connection = self._connections[rank]
        try:
            return connection.recv() if connection.poll(limit) else (False, "silent")
        except EOFError:
            return False, "died"

    def answers(self, limit: float = 60) -> list[tuple[bool, Any]]:
        return [self.answer(rank, limit) for rank in range(self.count)]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        self.start(function, *args)
        answers = self.answers()
        failed = [f"rank {rank}:\n{text}" for rank, (well, text) in enumerate(answers) if not well]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [result for _, result in answers]

    def ended(self, rank: int, limit: float = 30) -> int | None:
        """Let that rank's process end, and return its exit code; None when it does not."""
        self._connections[rank].send(None)
        self.processes[rank].join(limit)
        return self.processes[rank].exitcode

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
