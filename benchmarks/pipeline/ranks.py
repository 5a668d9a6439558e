"""Real ranks for benchmarks: processes of this machine that join as one job, run a function, part, and join again."""

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
    while (order := connection.recv()) is not None:
        function, size, port, parameters, arguments = order
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
            SM_HP_MP_PARAMETERS=json.dumps(parameters),
        )  # fmt: skip
        try:
            smp.init()
            connection.send((True, function(*arguments)))
        except Exception:  # noqa: BLE001  the parent shows it
            connection.send((False, traceback.format_exc()))
        finally:
            smp.shutdown()


class Ranks:
    """Up to `count` processes, each with one thread of torch, that run module-level functions as ranks 0, 1, ...

        with Ranks(2) as ranks:
            answers = ranks.run(function, {"partitions": 2, "microbatches": 4}, 7)

    `run` returns what each rank returned, and exits with a rank's traceback when one raised.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers = []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            self._workers.append((process, here))

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
        failed = [f"rank {rank}:\n{text}" for rank, (fine, text) in enumerate(answers) if not fine]
        if failed:
            raise SystemExit("\n".join(failed))
        return [answer for _, answer in answers]
