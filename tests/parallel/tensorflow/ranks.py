"""Real ranks for tests: processes of a Python with TensorFlow, which join, run a function, and leave each other again.

Pytest runs in another Python. So a test passes the name of a function ("training.fit" is `fit` in
`programs/training.py`), and arguments and results are plain values and arrays.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import herringbone_contract
import herringbone_parallel
from herringbone_contract.constants import REDUCE_SERVER_MODULE, RankVariable, ReduceVariable
from herringbone_contract.reduce_servers import ReduceServer, encode
from herringbone_entry.channel.reserved_port import ReservedPort

# scripts/nightly names Pythons with other releases.
PYTHON = Path(os.environ.get("TEST_TENSORFLOW_PYTHON", Path(__file__).parents[3] / ".venv-tf" / "bin" / "python"))
_SOURCES = [str(Path(package.__file__).parents[1]) for package in (herringbone_contract, herringbone_parallel)]
_SHIMS = [str(Path(herringbone_parallel.__file__).parents[1] / name) for name in ("shim", "shim_horovod")]


class RankFailedError(AssertionError):
    """A rank raised an exception; the message is its traceback."""


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a rank's Python: this repository's packages and shims, and no GPU."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*_SOURCES, *_SHIMS]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }


class Ranks:
    """Processes that run functions as ranks 0, 1, ...; they are started when they are first needed.

    >>> ranks.run("training.fit", 2, [1, 2, 3])             # doctest: +SKIP
    [what rank 0 returned, what rank 1 returned]
    """

    def __init__(self, folder: Path, *paths: Path, limit: float = 100.0) -> None:
        """Keep the ranks' files in `folder`. `paths` are further folders with modules of the functions.

        A rank answers within `limit` seconds. This is less than pytest's limit for a test, so that a test with a rank
        that hangs still prints the tracebacks of all ranks.
        """
        self._limit = limit
        self._paths = os.pathsep.join([*_SOURCES, *_SHIMS, *map(str, paths)])
        self._token = folder / "token"
        self._token.write_text("a secret for tests")
        # The process that ranks are forks of, once the first rank is needed, and the socket that asks it for ranks.
        self._server: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket
        # The process id of each rank, and the connection to it.
        self._ranks: list[tuple[int, Connection]] = []

    def run(self, function: str, size: int, *args: Any, **variables: str) -> list[Any]:
        """Run the function on `size` ranks and return the results; `variables` are added to their environment."""
        answers = self.answers(function, size, *args, **variables)
        failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [result for _, result in answers]

    def answers(self, function: str, size: int, *args: Any, **variables: str) -> list[tuple[bool, Any]]:
        """Run the function; return (True, result) or (False, traceback) for each rank."""
        while len(self._ranks) < size:
            self._ranks.append(self._rank())
        port = ReservedPort()
        port.release()
        for rank, (_, connection) in enumerate(self._ranks[:size]):
            environment = {
                RankVariable.RANK: str(rank),
                RankVariable.WORLD_SIZE: str(size),
                ReduceVariable.MEET: f"127.0.0.1:{port.number}",
                ReduceVariable.TOKEN_FILE: str(self._token),
                # Each rank is on a host of its own, so the sums go over sockets.
                ReduceVariable.HOST: f"algo-{rank + 1}",
                **variables,
            }
            connection.send((function, environment, args))
        answers = [self._answer(connection) for _, connection in self._ranks[:size]]
        if (False, "died") in [(ok, ok or text) for ok, text in answers]:
            self.close()
        return answers

    def model_parallel(self, **parameters: Any) -> dict[str, str]:
        """Return the environment of ranks in a job with these parameters of smdistributed.modelparallel."""
        settings = {"auto_partition": False, "default_partition": 0, **parameters}
        return {
            "SM_HP_MP_PARAMETERS": json.dumps(settings),
            RankVariable.LOCAL_RANK: "0",
            RankVariable.LOCAL_WORLD_SIZE: "1",
        }

    @contextmanager
    def helper(self) -> Iterator[dict[str, str]]:
        """Start the server of a helper host; yields the environment by which ranks find it."""
        with subprocess.Popen(
            [sys.executable, "-m", REDUCE_SERVER_MODULE],
            env=environment(**{ReduceVariable.TOKEN_FILE: str(self._token), ReduceVariable.HOST: "algo-9"}),
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            yield {ReduceVariable.SERVERS: encode([ReduceServer("algo-9", "127.0.0.1", port)])}
            server.terminate()

    def close(self) -> None:
        """End the ranks; the next run starts others."""
        for process, connection in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            connection.close()
        self._ranks.clear()

    def end(self) -> None:
        """End the ranks, and the process that they are forks of."""
        self.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._requests.close()

    def _rank(self) -> tuple[int, Connection]:
        """Start a rank; return its process id, and the connection to it."""
        if self._server is None:
            self._server = self._start_server()
        own_end, rank_end = socket.socketpair()
        with rank_end:
            socket.send_fds(self._requests, [b"rank"], [rank_end.fileno()])
        process = self._requests.recv(32)
        if not process:
            raise RankFailedError("the process that imports TensorFlow has ended; its traceback is in the output")
        return int(process), Connection(own_end.detach())

    def _start_server(self) -> subprocess.Popen[bytes]:
        if not PYTHON.exists():
            pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
        self._requests, server_end = socket.socketpair()
        with server_end:
            return subprocess.Popen(
                [PYTHON, Path(__file__).parent / "programs" / "serve.py", str(server_end.fileno())],
                # TensorFlow writes temporary files, and a killed rank leaves them behind. NumPy's library of linear
                # algebra would start threads, and a fork has none of them.
                env=environment(TMPDIR=str(self._token.parent), OPENBLAS_NUM_THREADS="1", PYTHONPATH=self._paths),
                pass_fds=[server_end.fileno()],
            )

    def _answer(self, connection: Connection) -> tuple[bool, Any]:
        if not connection.poll(self._limit):
            self.close()
            raise RankFailedError(f"a rank did not answer within {self._limit:g} s")
        try:
            return connection.recv()
        except (EOFError, ConnectionResetError):
            return False, "died"
