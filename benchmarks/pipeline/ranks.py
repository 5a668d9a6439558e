"""Ranks for benchmarks: processes of this machine that form a job, run a function, and leave the job, repeatedly."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

_ANSWER_SECONDS = 300


def _serve(rank: int, connection: Any) -> None:
    import torch

    import herringbone_parallel.torch.model_parallel.api as smp

    torch.set_num_threads(1)
    while (request := connection.recv()) is not None:
        function, size, port, parameters, arguments = request
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
            SM_HP_MP_PARAMETERS=json.dumps(parameters),
        )  # fmt: skip
        try:
            smp.init()
            connection.send((True, function(*arguments)))
        except Exception:  # noqa: BLE001  the parent prints the traceback
            connection.send((False, traceback.format_exc()))
        finally:
            smp.shutdown()


class Ranks:
    """Up to `count` processes with one torch thread each, which run module-level functions as ranks 0, 1, ...

        with Ranks(2) as ranks:
            answers = ranks.run(function, {"partitions": 2, "microbatches": 4}, 7)

    `run` returns the results of all ranks. If a rank raises, `run` exits with its traceback.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers = []
        for rank in range(count):
            connection, child_connection = context.Pipe()
            process = context.Process(target=_serve, args=(rank, child_connection), daemon=True)
            process.start()
            self._workers.append((process, connection))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process, connection in self._workers:
            if kind is None:
                connection.send(None)
                process.join()
            else:
                process.kill()

    def run(self, function: Callable[..., Any], parameters: dict[str, Any], *arguments: Any) -> list[Any]:
        """Form a job of `partitions` ranks with these parameters, and call `function(*arguments)` on each rank."""
        workers = self._workers[: parameters["partitions"]]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        for _, connection in workers:
            connection.send((function, len(workers), port, parameters, arguments))
        answers = []
        for rank, (_, connection) in enumerate(workers):
            if not connection.poll(_ANSWER_SECONDS):
                raise SystemExit(f"rank {rank} of {len(workers)} gave no answer within {_ANSWER_SECONDS} s")
            answers.append(connection.recv())
        failures = [f"rank {rank}:\n{text}" for rank, (succeeded, text) in enumerate(answers) if not succeeded]
        if failures:
            raise SystemExit("\n".join(failures))
        return [answer for _, answer in answers]
