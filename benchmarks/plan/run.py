"""Compare predicted with measured peak memory and step time, on CPUs or GPUs of this machine, in turn in one run.

Usage: python benchmarks/plan/run.py [--quick] [--models gpt2 ...] [--layouts one ddp2 ...] [--choose] [--tracker]

For each model and layout the unchanged script is measured without training, some of its steps are timed, the
prediction is made, and the script runs for real. `--choose` measures all layouts that 4 ranks can run instead, and says
how often the chosen one is the best. `--tracker` adds the peak that torch's own MemTracker finds on one rank. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from cases import CASES, ONLY_MEASURED
from choice import BASE, RANKS, Choice, choose
from ranks import HERE, SCRIPT, Measured, RunFailed, environment, run_program, run_ranks

_PIPELINE = {"microbatches": 4, "optimize": "speed"}


@dataclass(frozen=True)
class Layout:
    """One layout of the table: ranks, library of the script, and `modelparallel` parameters, None where it is off."""

    ranks: int
    library: str
    parameters: Mapping[str, Any] | None = None

    @property
    def distribution(self) -> dict[str, Any]:
        """The dict of a job with this layout."""
        if self.parameters is None:
            return {"torch_distributed": {"enabled": True}} if self.ranks > 1 else {}
        parallel = {"modelparallel": {"enabled": True, "parameters": dict(self.parameters)}}
        if self.library == "smp":
            return {"mpi": {"enabled": True, "processes_per_host": self.ranks}, "smdistributed": parallel}
        return {"torch_distributed": {"enabled": True}, "smdistributed": parallel}


LAYOUTS = {
    "one": Layout(1, "plain"),
    "ddp2": Layout(2, "plain"),
    "ddp4": Layout(4, "plain"),
    "shard2": Layout(2, "sagemaker", {"hybrid_shard_degree": 2}),
    "shard4": Layout(4, "sagemaker", {"hybrid_shard_degree": 4}),
    "pipeline2": Layout(2, "smp", {"partitions": 2, **_PIPELINE}),
    "pipeline3": Layout(3, "smp", {"partitions": 3, **_PIPELINE}),
    "pipeline4": Layout(4, "smp", {"partitions": 4, **_PIPELINE}),
}
# A measurement is of one rank of a data-parallel job: degrees of the model are 1.
_WHOLE = {"smp": {"partitions": 1, "microbatches": 4}, "sagemaker": {"hybrid_shard_degree": 0}, "plain": None}
QUICK = {"models": ["gpt2", "lstm"], "layouts": ["one", "ddp2", "shard2", "pipeline2"]}


@dataclass(frozen=True)
class Row:
    """One line of the table; errors are fractions of what was measured."""

    model: str
    layout: str
    predicted_bytes: int
    measured_bytes: int
    predicted_s: float
    measured_s: float
    processor_s: float
    tracked_bytes: int | None = None

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1


class Bench:
    """The steps of one comparison; measurements and timings are kept for the layouts that share them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder

    def arguments(self, model: str, library: str) -> list[str]:
        """Return the arguments of the script."""
        own = self._options
        words = ["--model", model, "--library", library, "--size", own.size, "--batch", str(own.batch)]
        return words if own.device == "cpu" else [*words, "--device", own.device]

    def compare(self, model: str, name: str) -> Row:
        """Predict and measure one layout."""
        layout = LAYOUTS[name]
        measurement = self.measurement(model, layout.library)
        timings = None if self._options.device == "cuda" else self.timings(model, measurement, name)
        prediction = self.predict(measurement, timings, layout.ranks, layout.distribution)["planned"]
        if prediction.get("refusal"):
            raise RunFailed(f"refused: {prediction['refusal']}")
        real = self.run(model, name)
        return Row(
            model=model,
            layout=name,
            predicted_bytes=max(_peak(part) for part in prediction["memory"]),
            measured_bytes=max(real.peak_bytes),
            predicted_s=prediction["step"]["seconds"]["expected"],
            measured_s=real.shared_seconds if self._options.processor else real.step_seconds,
            processor_s=real.processor_seconds,
            tracked_bytes=self.tracked(model) if self._options.tracker and name == "one" else None,
        )

    def tracked(self, model: str) -> int:
        """Return the peak that torch's own MemTracker finds on one rank."""
        words = [str(HERE / "tracker.py"), *self.arguments(model, "plain")]
        return int(self._timed(f"track {model}", *words, extra=environment(None, 1, 0, 1)))

    def measurement(self, model: str, library: str) -> Path:
        """Return the file of the measured step, made once for a model and a library."""
        path = self._folder / f"{model}-{library}-{self._options.size}-{self._options.batch}.json"
        if not path.exists():
            ranks = 1 if library == "smp" else 2
            extra = environment(_WHOLE[library], ranks, 0, 1)
            words = ["--output", str(path), "--ranks", str(ranks), "--device", self._options.device, str(SCRIPT)]
            words += self.arguments(model, library)
            self._timed(f"measure {model} {library}", "-m", "herringbone_parallel.torch.measure", *words, extra=extra)
        return path

    def timings(self, model: str, measurement: Path, name: str) -> Path | None:
        """Return the file of the seconds of the script's steps, with so many processes at once as the layout has."""
        layout, own = LAYOUTS.get(name) or Layout(RANKS, "smp", BASE), self._options
        path = measurement.with_suffix(f".{name}.timings")
        if not path.exists():
            question = measurement.with_suffix(f".{name}.question")
            question.write_text(json.dumps(self._question(measurement, None, layout.ranks, layout.distribution)))
            ranks = 1 if layout.library == "smp" else 2
            words = ["--output", str(path), "--ranks", str(ranks), "--time", str(question), "--threads", "1"]
            words += [
                "--budget",
                str(own.budget),
                *(["--job"] if name in LAYOUTS else []),
                str(SCRIPT),
                *self.arguments(model, layout.library),
                "--steps",
                "60",
            ]
            extra = environment(layout.parameters, layout.ranks, 0, 1)
            self._timed(f"time {path.stem}", "-m", "herringbone_parallel.torch.measure", *words, extra=extra)
        return path

    def _question(
        self, measurement: Path, timings: Path | None, ranks: int, distribution: Mapping[str, Any], limit: int = 0
    ) -> dict[str, Any]:
        hosts: dict[str, Any] = {"name": "local_process", "count": 1, "ranks_per_host": ranks}
        if self._options.device == "cuda":
            hosts |= {"devices": ranks, "device": _gpu()}
        else:
            hosts |= {"cores": os.cpu_count(), "device": _processor("cpu")}
        return {
            "measurement": str(measurement),
            "timings": None if timings is None else str(timings),
            "hosts": hosts,
            "distribution": dict(distribution),
            **({"search": {"limit": limit}} if limit else {}),
        }

    def predict(
        self, measurement: Path, timings: Path | None, ranks: int, distribution: Mapping[str, Any], limit: int = 0
    ) -> dict[str, Any]:
        """Return the answer of the predictor; with a `limit`, for all layouts of so many ranks."""
        question = self._question(measurement, timings, ranks, distribution, limit)
        answer = self._timed(
            f"predict {measurement.stem}",
            "-m",
            "herringbone_parallel.predict",
            extra=environment(None, 1, 0, 1),
            text=json.dumps(question).encode(),
        )
        return json.loads(answer)

    def run(self, model: str, name: str) -> Measured:
        """Run the script for real, once for a model and a layout."""
        own, layout = self._options, LAYOUTS[name]
        path = self._folder / f"{model}-{name}-{own.size}-{own.batch}-{own.steps}.real"
        if not path.exists():
            arguments = [*self.arguments(model, layout.library), "--steps", str(own.steps)]
            started = time.monotonic()
            real = run_ranks(arguments, layout.parameters, layout.ranks, folder=self._folder, seconds=own.timeout)
            _progress(f"ran {model} on {layout.ranks} ranks in {time.monotonic() - started:.1f} s")
            path.write_text(json.dumps(asdict(real)))
        return Measured(**json.loads(path.read_text()))

    def _timed(self, label: str, *words: str, extra: Mapping[str, str], text: bytes = b"") -> bytes:
        started = time.monotonic()
        output = run_program(*words, extra=extra, seconds=self._options.timeout, text=text)
        _progress(f"{label}: {time.monotonic() - started:.1f} s")
        return output


def _peak(memory: Mapping[str, int]) -> int:
    """Return the bytes of tensors; what a GPU's allocator keeps beyond those is not in the measured peak."""
    return sum(size for kind, size in memory.items() if kind != "slack")


def _processor(name: str) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rates = {"operations_per_second": {"float32": 5e10}, "bytes_per_second": 1e10}
    return {"name": name, "memory_bytes": memory, **rates}


def _gpu() -> dict[str, Any]:
    """Return the figures of this machine's GPU, those of a small one if the table does not know it."""
    import torch

    from herringbone_contract.errors import UsageError
    from herringbone_contract.prediction.devices import device_named

    name = torch.cuda.get_device_name()
    try:
        return dict(msgspec.to_builtins(device_named(name)))
    except UsageError:
        return {**_processor(name), "operations_per_second": {"float32": 1e13}, "bytes_per_second": 3e11}


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small models, four layouts")
    parser.add_argument("--models", nargs="+", choices=sorted(CASES))
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS))
    parser.add_argument("--size", choices=["full", "small"], default="small")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="on GPUs, one for each rank")
    parser.add_argument("--choose", action="store_true", help="measure all layouts of 4 ranks instead")
    parser.add_argument("--limit", type=int, default=200, help="layouts of a choice to measure (%(default)s)")
    parser.add_argument("--processor", action="store_true", help="time steps by processor time, on a loaded machine")
    parser.add_argument("--tracker", action="store_true", help="add torch's own MemTracker, for one rank")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank's step (%(default)s)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of timed steps (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one program (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder in which measurements, timings and real runs stay")
    return parser.parse_args()


def report(rows: list[Row], failures: dict[str, str]) -> dict[str, Any]:
    """Print the table, and return the summary."""
    print(f"{'model':12} {'layout':10} {'peak MB':>9} {'measured':>9} {'error':>7}", end="")
    print(f" {'step s':>8} {'measured':>9} {'error':>7} {'CPU s':>7} {'tracker':>7}")
    for row in rows:
        print(_line(row))
    memory, seconds = [abs(row.memory_error) for row in rows], [abs(row.time_error) for row in rows]
    return {
        "rows": len(rows),
        "failed": sorted(failures),
        "memory_error": {f"{row.model} {row.layout}": round(row.memory_error, 4) for row in rows},
        "time_error": {f"{row.model} {row.layout}": round(row.time_error, 4) for row in rows},
        "memory_worst": round(max(memory), 4) if rows else None,
        "memory_median": round(statistics.median(memory), 4) if rows else None,
        "time_worst": round(max(seconds), 4) if rows else None,
        "time_median": round(statistics.median(seconds), 4) if rows else None,
        "tracker_error": {
            f"{row.model} {row.layout}": round(row.tracked_bytes / row.measured_bytes - 1, 4)
            for row in rows
            if row.tracked_bytes is not None
        },
    }


def _line(row: Row) -> str:
    tracker = "" if row.tracked_bytes is None else f" {row.tracked_bytes / row.measured_bytes - 1:+7.1%}"
    return (
        f"{row.model:12} {row.layout:10} {row.predicted_bytes / 1e6:9.1f} {row.measured_bytes / 1e6:9.1f}"
        f" {row.memory_error:+7.1%} {row.predicted_s:8.3f} {row.measured_s:9.3f} {row.time_error:+7.1%}"
        f" {row.processor_s:7.3f}{tracker}"
    )


def report_choices(choices: list[Choice]) -> dict[str, Any]:
    """Print one line for each case, and return the summary."""
    for choice in choices:
        print(f"{choice.case:24} {choice.layouts:3} layouts, chosen / best {choice.over_best:.3f}, {choice.chosen}")
    within = sum(choice.over_best <= 1.05 for choice in choices)
    return {
        "cases": len(choices),
        "within_5_percent": within,
        "over_best": {choice.case: round(choice.over_best, 3) for choice in choices},
    }


def main() -> int:
    options = parse()
    models = options.models or (QUICK["models"] if options.quick else sorted(set(CASES) - set(ONLY_MEASURED)))
    layouts = options.layouts or (QUICK["layouts"] if options.quick else list(LAYOUTS))
    rows: list[Row] = []
    choices: list[Choice] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(options, folder)
        for model in models:
            for name in ["choice"] if options.choose else layouts:
                try:
                    if options.choose:
                        choices.append(choose(bench, model, options, folder))
                    else:
                        rows.append(bench.compare(model, name))
                        _progress(_line(rows[-1]))
                except RunFailed as error:
                    failures[f"{model} {name}"] = str(error)
                    _progress(f"{model} {name}: {error}")
    for place, reason in failures.items():
        print(f"{place}: {reason}")
    summary = report_choices(choices) if options.choose else report(rows, failures)
    print(json.dumps({**summary, "failed": sorted(failures)}))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
