"""Time the steps of sharded scripts, started by torchrun, `accelerate launch` and Herringbone, in turn in one run.

Usage: python benchmarks/sharding/run.py [--rounds 5] [--steps 30] [--ranks 2]

Progress goes to standard error; the last line of standard output is JSON. Each ratio is the median over the rounds of
the ratio of the rounds' median steps of rank 0:

- `torchrun`: a plain `fully_shard` script, started by us over started by torchrun.
- `accelerate`: an accelerate script, started by us over started by `accelerate launch`; null without accelerate.
  On CPUs torchrun starts it, and the ranks average gradients: accelerate itself neither starts nor shards CPU ranks.
- `transform`: a model sharded by `torch.sagemaker` over one sharded by `fully_shard`, step by step in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "script.py"
SOURCES = [str(ROOT / folder) for folder in ("sdk", "contract", "entrypoints", "parallel")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    return parser.parse_args()


class Runs:
    """Starts the script in each way, and reads its times."""

    def __init__(self, ranks: int, steps: int) -> None:
        self._ranks = ranks
        self._on_cpu = not _has_cuda()
        common = {"STEPS": str(steps), "OMP_NUM_THREADS": "1"}
        if self._on_cpu:
            common["ACCELERATE_USE_CPU"] = "true"
        self._common = common
        self._environment = {**os.environ, **common}

    def torchrun(self) -> dict[str, float]:
        return self._times(["torch.distributed.run", "--nproc-per-node", str(self._ranks), *_port()], "plain")

    def accelerate_launch(self) -> dict[str, float]:
        if self._on_cpu:
            # `accelerate launch` starts several CPU ranks by mpirun only. Its documentation names torchrun, too.
            return self._times(["torch.distributed.run", "--nproc-per-node", str(self._ranks), *_port()], "accelerate")
        options = ["--num_processes", str(self._ranks), "--num_machines", "1", "--mixed_precision", "no"]
        options += ["--dynamo_backend", "no", "--main_process_port", _port()[1], "--use_fsdp", "--fsdp_version", "2"]
        options += ["--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
        return self._times(["accelerate.commands.launch", *options], "accelerate")

    def herringbone(self, variant: str) -> dict[str, float]:
        """Return the times of a job on this machine."""
        from herringbone import PyTorch

        distribution: dict[str, Any] = {"torch_distributed": {"enabled": True}}
        if variant == "transform" or (variant == "accelerate" and not self._on_cpu):
            parameters = {"hybrid_shard_degree": self._ranks}
            distribution["smdistributed"] = {"modelparallel": {"enabled": True, "parameters": parameters}}
        job = PyTorch(
            entry_point=SCRIPT.name,
            source_dir=str(HERE),
            instance_type="local_process",
            instance_count=self._ranks if self._on_cpu else 1,
            distribution=distribution,
            environment={**self._common, "VARIANT": variant},
        ).fit(logs=False)
        if job.status != "Completed":
            sys.exit(f"the job {job.name} ended as {job.status}: herringbone logs {job.name}")
        return _medians("\n".join(line.text if hasattr(line, "text") else str(line) for line in job.logs()))

    def _times(self, command: list[str], variant: str) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-m", *command, str(SCRIPT)],
            env={**self._environment, "VARIANT": variant},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with code {done.returncode}; its error is above")
        return _medians(done.stdout)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _port() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["--master-port", str(free.getsockname()[1])]


def _medians(output: str) -> dict[str, float]:
    [line] = [line for line in output.splitlines() if "TIMES " in line]
    times: Mapping[str, list[float]] = json.loads(line.partition("TIMES ")[2])
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HERRINGBONE_HOME"] = home
        # The job's controller and ranks are processes of their own.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*SOURCES, os.environ.get("PYTHONPATH")]))
        sys.path[:0] = SOURCES
        runs = Runs(arguments.ranks, arguments.steps)
        has_accelerate = importlib.util.find_spec("accelerate") is not None
        ratios: dict[str, list[float]] = {"torchrun": [], "accelerate": [], "transform": []}
        seconds: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            ways = {"torchrun": runs.torchrun, "ours": lambda: runs.herringbone("plain")}
            taken = _in_turn(ways, number, "plain")
            ratios["torchrun"].append(taken["ours"] / taken["torchrun"])
            _note(seconds, "plain", taken)
            if has_accelerate:
                ways = {"launch": runs.accelerate_launch, "ours": lambda: runs.herringbone("accelerate")}
                taken = _in_turn(ways, number, "accelerate")
                ratios["accelerate"].append(taken["ours"] / taken["launch"])
                _note(seconds, "accelerate", taken)
            both = runs.herringbone("transform")
            for name in ("plain", "transform"):
                _say(number, f"transform {name}", both[name])
            ratios["transform"].append(both["transform"] / both["plain"])
            _note(seconds, "transform", both)
    result: dict[str, Any] = {
        name: round(statistics.median(values), 4) if values else None for name, values in ratios.items()
    }
    result["step_ms"] = {name: round(1e3 * statistics.median(values), 2) for name, values in seconds.items()}
    print(json.dumps(result | vars(arguments)))
    return 0


def _in_turn(ways: Mapping[str, Any], number: int, variant: str) -> dict[str, float]:
    """Run both ways; each is first in every second round."""
    taken = {}
    for name in list(ways)[:: 1 if number % 2 else -1]:
        taken[name] = ways[name]()[variant]
        _say(number, f"{variant} {name}", taken[name])
    return taken


def _say(number: int, name: str, seconds: float) -> None:
    """Print a line of progress."""
    print(f"  round {number + 1}: {name} {1e3 * seconds:.1f} ms a step", file=sys.stderr, flush=True)


def _note(seconds: dict[str, list[float]], variant: str, taken: Mapping[str, float]) -> None:
    for name, value in taken.items():
        seconds.setdefault(f"{variant} {name}", []).append(value)


if __name__ == "__main__":
    sys.exit(main())
