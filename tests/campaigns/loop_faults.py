"""Stop ten kinds of training loops in the middle of an epoch, go on, and compare with the undisturbed run.

Usage: `.venv/bin/python -m tests.campaigns.loop_faults [--loops ddp,...] [--situations kill,...]` from the root of the
repository. `tests/huggingface/setup`, `tests/tensorflow/setup` and `tests/mxnet/setup` make the Pythons of some loops.
Each run is a job of `local_process` with a script of `loops/`. The last line is JSON: what is wrong of each.

    kill     SIGKILL of all ranks          the same layout: each step's samples, loss, and the weights are equal in bits
    stop     `herringbone stop`            the same
    fewer    kill, then one rank           each sample of each epoch once, besides the repeats that fill the last round;
    more     kill, then four ranks         weights within 1e-4 of those without a stop, without dropout
    layout   kill, then another layout     the same
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "loops"
SITUATIONS = ("kill", "stop", "fewer", "more", "layout")
# Steps of rank 0 before the end comes: in the middle of the first epoch or of the second.
MOMENTS = {"kill": 7, "stop": 6, "fewer": 7, "more": 3, "layout": 7}
_SECONDS = 120
_CLIENT = """
import json, sys
from herringbone import Estimator, MXNet, PyTorch, TensorFlow
kind, settings = json.loads(sys.argv[1])
globals()[kind](**settings).fit(logs=False, job_name=sys.argv[2])
"""


class Loop(NamedTuple):
    """A loop: its Python, script, distribution and hyperparameters.

    `others` are the ranks of other situations, and their distribution where it is another. An epoch is filled by less
    than `padding` samples. Weights on other ranks are compared where nothing but dropout depends on the ranks.
    """

    python: str
    script: str
    distribution: Any
    hyperparameters: dict[str, Any]
    kind: str = "PyTorch"
    others: dict[str, tuple[int, Any]] = {"fewer": (1, None), "more": (4, None)}  # noqa: RUF012
    samples: int = 64
    epochs: int = 2
    padding: int = 4
    compares_weights: bool = True


def _sharded(degree: int) -> dict[str, Any]:
    parameters = {"hybrid_shard_degree": degree}
    return {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "torch_distributed": {"enabled": True},
    }


def _pipelined(partitions: int) -> dict[str, Any]:
    parameters = {"partitions": partitions, "microbatches": 2, "ddp": True}
    return {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": 1},
    }


_HUGGING_FACE: dict[str, Any] = {"samples": 37, "epochs": 2, "padding": 8, "compares_weights": False}
LOOPS = {
    "ddp": Loop(".venv", "torch_loop.py", "torch_distributed", {"kind": "ddp"}),
    "fsdp2": Loop(".venv", "torch_loop.py", "torch_distributed", {"kind": "fsdp2"}),
    "tsm": Loop(
        ".venv",
        "torch_loop.py",
        _sharded(2),
        {"kind": "tsm"},
        others={"fewer": (1, _sharded(1)), "more": (4, _sharded(4)), "layout": (2, _sharded(1))},
    ),
    "smp": Loop(
        ".venv",
        "smp_loop.py",
        _pipelined(2),
        {},
        others={"fewer": (1, _pipelined(1)), "more": (4, _pipelined(2)), "layout": (2, _pipelined(1))},
    ),
    "keras": Loop(
        ".venv-tf", "keras_loop.py", {"smdistributed": {"dataparallel": {"enabled": True}}}, {}, "TensorFlow"
    ),
    "mxnet": Loop(".venv-mxnet", "mxnet_loop.py", {"mpi": {"enabled": True, "processes_per_host": 1}}, {}, "MXNet"),
    **{
        kind: Loop(".venv-huggingface", "hugging_face.py", "torch_distributed", {"kind": kind}, **_HUGGING_FACE)
        for kind in ("trainer", "peft", "accelerate", "lightning")
    },
}


class Run:
    """A job with a loop's script, its log and its checkpoints."""

    def __init__(
        self, loop: Loop, folder: Path, log: Path, situation: str, dropout: float, seconds: float = 0.05
    ) -> None:
        home = log.parent / "home"
        ranks, layout = loop.others.get(situation, (2, None))
        self.log, self.name = log, f"{log.name}-{time.monotonic_ns()}".replace(".", "-")
        log.mkdir(exist_ok=True)
        settings = {
            "entry_point": loop.script,
            "source_dir": str(SCRIPTS),
            "instance_type": "local_process",
            "instance_count": ranks,
            "distribution": layout or loop.distribution,
            "hyperparameters": {**loop.hyperparameters, "dropout": dropout},
            "checkpoint_s3_uri": f"file://{folder}",
            "environment": {"LOOP_LOG": str(log), "LOOP_ROOT": str(ROOT), "LOOP_SECONDS": str(seconds)},
        }
        sources = [str(ROOT / name) for name in ("contract", "sdk", "entrypoints", "parallel")]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HERRINGBONE_"))},
            "HERRINGBONE_HOME": str(home),
            "HERRINGBONE_REPORT": "off",
            "PYTHONPATH": os.pathsep.join(sources),
        }
        self.python = ROOT / loop.python / "bin" / "python"
        command = [self.python, "-c", _CLIENT, json.dumps([loop.kind, settings]), self.name]
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> None:
        """Wait until the training is over. Raises `RuntimeError` when it has failed."""
        _, errors = self.process.communicate(timeout=_SECONDS)
        if self.process.returncode:
            raise RuntimeError(errors[-600:])

    def cut(self, situation: str, steps: int) -> None:
        """End it after so many steps."""
        begin = time.monotonic()
        while len([line for line in lines(self.log, 0) if isinstance(line[0], int)]) < steps:
            if self.process.poll() is not None or time.monotonic() - begin > _SECONDS:
                _, errors = self.process.communicate(timeout=1)
                raise RuntimeError(f"the training came to no step {steps}: {errors[-600:]}")
            time.sleep(0.01)
        if situation == "stop":
            command = [sys.executable, "-m", "herringbone", "stop", self.name]
            subprocess.run(command, env=self.environment, check=True, capture_output=True)
        else:
            for file in self.log.glob("*.jsonl"):
                # The rank may have ended with its peer.
                [*_, [_, pid]] = [line for line in lines(self.log, int(file.stem)) if line[0] == "pid"]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=_SECONDS)


def lines(log: Path, rank: int) -> list[Any]:
    file = log / f"{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def told(log: Path, before: Path | None = None) -> tuple[dict[int, dict[int, Any]], list[float]]:
    """Return {step: {rank: [epoch, samples, loss]}} and the weights; steps of `before` count until `log` begins."""
    steps: dict[int, dict[int, Any]] = {}
    weights: list[float] = []
    # A job that was stopped behind its last step goes on without one.
    first = min((line[0] for line in lines(log, 0) if isinstance(line[0], int)), default=math.inf)
    for folder in (before, log):
        for file in folder.glob("*.jsonl") if folder else ():
            for line in lines(folder, int(file.stem)):
                if line[0] == "end":
                    weights = line[1]
                elif line[0] != "pid" and (folder == log or line[0] < first):
                    steps.setdefault(line[0], {})[int(file.stem)] = line[1:]
    return steps, weights


def samples(steps: dict[int, dict[int, Any]], epoch: int) -> Counter[int]:
    return Counter(
        index
        for ranks in steps.values()
        for number, indices, _ in ranks.values()
        if number == epoch
        for index in indices
    )


def judge(loop: Loop, situation: str, whole: Any, found: Any) -> str:
    """Return what is wrong, "" for nothing."""
    (steps, weights), (own, own_weights) = whole, found
    if situation in ("kill", "stop"):
        for step, expected in steps.items():
            if own.get(step) != expected:
                return f"step {step}: {own.get(step)} is not {expected}"
        return "" if own_weights == weights else "the weights differ"
    for epoch in range(loop.epochs):
        counted = samples(own, epoch)
        if missing := sorted(set(range(loop.samples)) - set(counted)):
            return f"epoch {epoch}: without {missing[:8]}"
        if counted.total() - loop.samples >= loop.padding:
            return f"epoch {epoch}: {counted.total() - loop.samples} samples came twice"
    if not loop.compares_weights:
        return ""
    worst = max(abs(one - other) for one, other in zip(weights, own_weights, strict=True))
    return "" if worst < 1e-4 else f"a weight differs by {worst:.1e}"


def tried(loop: Loop, situation: str, base: Path, wholes: dict[float, Any]) -> str:
    """Return what is wrong with one loop in one situation."""
    dropout = 0.3 if situation in ("kill", "stop") else 0.0
    if dropout not in wholes:
        log = base / f"whole-{dropout}"
        Run(loop, base / f"whole-{dropout}-checkpoints", log, "", dropout).end()
        wholes[dropout] = told(log)
    folder, before, after = (base / f"{situation}-{part}" for part in ("checkpoints", "before", "after"))
    # `herringbone stop` takes a second to start.
    seconds = 0.4 if situation == "stop" else 0.05
    Run(loop, folder, before, "", dropout, seconds).cut(situation, MOMENTS[situation])
    Run(loop, folder, after, situation, dropout).end()
    if not any(isinstance(line[0], int) and line[0] > 1 for line in lines(after, 0)[:2]):
        return "it began at the first step"
    return judge(loop, situation, wholes[dropout], told(after, before))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    arguments = parser.parse_args()
    results: dict[str, dict[str, str]] = {}
    for name in arguments.loops.split(","):
        loop = LOOPS[name]
        if not (ROOT / loop.python / "bin" / "python").exists():
            print(f"{name}: skipped, there is no {loop.python}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="hb-loops-") as base:
            wholes: dict[float, Any] = {}
            for situation in arguments.situations.split(","):
                if situation not in ("kill", "stop", *loop.others):
                    continue
                try:
                    wrong = tried(loop, situation, Path(base), wholes)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    wrong = str(error)
                results.setdefault(name, {})[situation] = wrong
                print(f"{name} {situation}: {wrong or 'equal'}", file=sys.stderr, flush=True)
    print(json.dumps(results))
    return any(wrong for row in results.values() for wrong in row.values())


if __name__ == "__main__":
    sys.exit(main())
