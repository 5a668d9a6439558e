"""Runs the training script for real: processes of this machine, started as a job's launcher would start them."""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocated import counting

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "train.py"
_SOURCES = ("sdk", "contract", "entrypoints", "parallel", "parallel/shim")


@dataclass(frozen=True)
class Measured:
    """The figures of one real run: seconds of a step of the slowest rank, processor seconds of all, peak by rank."""

    step_seconds: float
    processor_seconds: float
    peak_bytes: tuple[int, ...]

    @property
    def shared_seconds(self) -> float:
        """The seconds of a step if the ranks' processor time were divided over the cores, and nothing waited."""
        return self.processor_seconds / min(len(self.peak_bytes), os.cpu_count() or 1)


def _measured(results: Path, ranks: int) -> Measured:
    reports = [json.loads(Path(results, f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    return Measured(
        step_seconds=max(statistics.median(report["seconds"]) for report in reports),
        processor_seconds=sum(statistics.median(report["processor_seconds"]) for report in reports),
        peak_bytes=tuple(report["peak_bytes"] or 0 for report in reports),
    )


class RunFailed(Exception):
    """A real run or a program of the prediction ended with an error; the text has its last lines."""


def environment(parameters: Mapping[str, Any] | None, ranks: int, rank: int, port: int) -> dict[str, str]:
    """Return the environment of one rank; `parameters` are those of `modelparallel`, None where it is off."""
    path = [str(ROOT / source) for source in _SOURCES]
    extra = {
        "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }
    if parameters is not None:
        extra["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    return {**os.environ, **extra}


def run_ranks(
    arguments: Sequence[str], parameters: Mapping[str, Any] | None, ranks: int, *, folder: Path, seconds: float
) -> Measured:
    """Run the script with these arguments on so many ranks, and return what was measured.

    Raises `RunFailed` for a rank that fails, or for ranks that need more than `seconds`.
    """
    with tempfile.TemporaryDirectory(dir=folder) as results:
        # torch itself counts on a GPU.
        port, counter = _free_port(), {} if "cuda" in arguments else counting(folder)
        processes = []
        for rank in range(ranks):
            extra = {**environment(parameters, ranks, rank, port), **counter, "PLAN_RESULTS": results}
            with Path(results, f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, str(SCRIPT), *arguments]
                processes.append(subprocess.Popen(command, env=extra, stdout=log, stderr=log))
        _wait(processes, Path(results), seconds)
        return _measured(Path(results), ranks)


def run_program(*words: str, extra: Mapping[str, str], seconds: float, text: bytes = b"") -> bytes:
    """Run Python with these words and return its standard output. Raises `RunFailed` with the end of its errors."""
    command, name = [sys.executable, *words], words[1] if words[0] == "-m" else words[0]
    try:
        done = subprocess.run(
            command, input=text, env={**os.environ, **extra}, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{name} took longer than {seconds:.0f} s") from error
    if done.returncode:
        raise RunFailed(f"{name} ended with {done.returncode}: {_tail(done.stderr)}")
    return done.stdout


class Servers:
    """Processes that run the script again and again, so that a layout costs no start of Python and torch.

    with Servers(4, folder) as servers:
        servers.run(["--model", "gpt2", "--library", "smp"], {"partitions": 2, "ddp": True}).step_seconds
    """

    def __init__(self, ranks: int, folder: Path, seconds: float = 600.0) -> None:
        self._ranks, self._folder, self._seconds = ranks, folder, seconds
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []

    def run(self, arguments: Sequence[str], parameters: Mapping[str, Any]) -> Measured:
        """Return what was measured, without memory. Raises `RunFailed` with the error of a rank."""
        if not self._processes:
            self._start()
        port = _free_port()
        with tempfile.TemporaryDirectory(dir=self._folder) as results:
            for rank, process in enumerate(self._processes):
                own = environment(parameters, self._ranks, rank, port)
                changed = {key: value for key, value in own.items() if os.environ.get(key) != value}
                order = {"environment": {**changed, "PLAN_RESULTS": results}, "arguments": list(arguments)}
                assert process.stdin is not None
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
            errors = self._answers()
            if any(errors):
                # The other ranks may wait for the one that has failed, so new ones run the next layout.
                self.__exit__()
                raise RunFailed(_tail(next(filter(None, errors)).encode()))
            return _measured(Path(results), self._ranks)

    def _start(self) -> None:
        for rank in range(self._ranks):
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "serve.py")],
                    env=environment(None, self._ranks, rank, 1),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )

    def _answers(self) -> list[str]:
        """Return the error of each rank; stop at the first one, and at the end of the time."""
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            end = time.monotonic() + self._seconds
            while len(answers) < self._ranks and not any(answers.values()):
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    return [f"the layout took longer than {self._seconds:.0f} s"]
                for key, _ in ready:
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    if line.startswith("ANSWER ") or not line:
                        answers[key.data] = json.loads(line[7:]) if line else f"rank {key.data} ended"
                        selector.unregister(key.fileobj)
        return list(answers.values())


def _wait(processes: list[subprocess.Popen[bytes]], results: Path, seconds: float) -> None:
    try:
        for rank, process in enumerate(processes):
            code = process.wait(timeout=seconds)
            if code:
                raise RunFailed(
                    f"rank {rank} ended with {code}: {_tail(Path(results, f'rank-{rank}.log').read_bytes())}"
                )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"the ranks took longer than {seconds:.0f} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _tail(output: bytes) -> str:
    return " | ".join(output.decode(errors="replace").strip().splitlines()[-3:])[-600:]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
