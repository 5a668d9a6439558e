"""Real ranks for tests: a pool of processes that initialise the library, run a function and shut the library down."""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

from herringbone_entry.channel.reserved_port import ReservedPort
from tests.parallel.torch.processes import PROCESSES

# With this variable of the pool, torch's process group has these backends, instead of those that the library picks.
BACKENDS = "TEST_BACKENDS"


class RankFailedError(AssertionError):
    """A rank raised; the message is its traceback."""


def free_port() -> int:
    """Return a free port that the system gives to no other test at the same time."""
    port = ReservedPort()
    port.release()
    return port.number


def _serve(rank: int, connection: Any, variables: dict[str, str], first_is_over: Any) -> None:
    os.environ.update(variables)
    import torch

    torch.set_num_threads(1)
    # A garbage collection over the objects of all imports would take longer than most tests.
    gc.freeze()
    imported_all = False
    while (task := connection.recv()) is not None:
        library, function, world_size, local_size, port, parameters, args = task
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank % local_size),
            WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(local_size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), SM_HP_MP_PARAMETERS=json.dumps(parameters),
            GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
        state = importlib.import_module(f"herringbone_parallel.torch.{library}.state")
        if rank:
            _wait_for_store(port, first_is_over)
        try:
            if backends := variables.get(BACKENDS):
                torch.distributed.init_process_group(backends, rank=rank, world_size=world_size)
            state.init()
            _send(connection, (True, function(*args)))
        except BaseException:  # noqa: BLE001  the test gets the traceback
            _send(connection, (False, traceback.format_exc()))
        finally:
            if not rank:
                first_is_over.set()
            state.shutdown()
            if variables.get(BACKENDS) and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            # A model and its hooks are a reference cycle. A model that stays keeps groups, whose threads keep waking
            # up.
            gc.collect()
            if not imported_all:
                # The first task has imported the rest.
                imported_all = True
                gc.freeze()


def _send(connection: Any, answer: tuple[bool, Any]) -> None:
    """Send an answer with the data of its tensors; `connection.send` would pass a descriptor for each."""
    import torch

    buffer = io.BytesIO()
    torch.save(answer, buffer)
    connection.send_bytes(buffer.getbuffer())


def _receive(connection: Any) -> Any:
    import torch

    return torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)


def _wait_for_store(port: int, first_is_over: Any) -> None:
    """Wait until rank 0's store listens, or rank 0 has refused its settings.

    Torch itself tries again only after up to half a second.

    A connection that only asks would keep the store from its work for five seconds, and a look at the kernel's table of
    connections costs milliseconds. Linux refuses a second socket on a listening port, even with SO_REUSEADDR.
    """
    # Later on torch's own attempts do.
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and not first_is_over.is_set():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return
        time.sleep(0.003)


class Ranks:
    """Processes that run module-level functions as ranks 0, 1, ..., with `variables` in their environment.

    >>> ranks.run(function, {"partitions": 2, "microbatches": 4}, 7)    # doctest: +SKIP
    [what rank 0 returned, what rank 1 returned]
    """

    def __init__(self, **variables: str) -> None:
        self._variables = variables
        self._workers: list[tuple[Any, Any]] = []
        # Set when rank 0 has run its function, or failed before.
        self._first_is_over = PROCESSES.Event()

    def run(self, function: Callable[..., Any], parameters: dict[str, Any], *args: Any) -> list[Any]:
        """Run `function(*args)` with version 1's library, on as many ranks as the parameters and `replicas` make."""
        count = parameters["partitions"] * parameters.get("tensor_parallel_degree", 1) * parameters.pop("replicas", 1)
        return self._run("model_parallel", function, count, parameters, args)

    def shard(self, function: Callable[..., Any], count: int, parameters: dict[str, Any], *args: Any) -> list[Any]:
        """Run `function(*args)` with version 2's library on `count` ranks.

        >>> ranks.shard(function, 4, {"tensor_parallel_degree": 2}, 7)    # doctest: +SKIP
        """
        return self._run("sharding", function, count, parameters, args)

    def _run(
        self, library: str, function: Callable[..., Any], count: int, parameters: dict[str, Any], args: tuple[Any, ...]
    ) -> list[Any]:
        local_size = parameters.pop("local_size", count)
        while len(self._workers) < count:
            connection, worker_connection = PROCESSES.Pipe()
            process = PROCESSES.Process(
                target=_serve,
                args=(len(self._workers), worker_connection, self._variables, self._first_is_over),
                daemon=True,
            )
            process.start()
            worker_connection.close()
            self._workers.append((process, connection))
        port = free_port()
        self._first_is_over.clear()
        for _, connection in self._workers[:count]:
            connection.send((library, function, count, local_size, port, parameters, args))
        answers = []
        for _, connection in self._workers[:count]:
            if not connection.poll(60):
                self.close()
                others = "".join(f"\nrank {rank} answered: {answer[1]}" for rank, answer in enumerate(answers))
                raise RankFailedError(f"rank {len(answers)} did not answer within 60 s{others}")
            try:
                answers.append(_receive(connection))
            except EOFError:
                answers.append((False, "died"))
        failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if any(text == "died" for _, text in answers):
            self.close()
        if failed:
            raise RankFailedError("\n".join(failed))
        return [result for _, result in answers]

    def close(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.join()
        self._workers.clear()
