"""Time the search for a layout: from a question to a table, by the process that answers.

Usage: python benchmarks/plan/search.py [--model bert-large] [--size full] [--batch 32] [--limit 50] [--profile FILE]
       python benchmarks/plan/search.py --measure llama-7b

The model's script is measured once for version 1 of modelparallel (`smp`) and once for version 2 (`torch.sagemaker`).
Then `herringbone_parallel.predict` is asked for the best layouts on two hosts with 8 H100 each, and on one host with 4
ranks on CPUs. The times are those of the whole process: its start, imports, the reading of the measurement, the search
and the answer. `--measure` times the measurement of a model's step instead. The last line is JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cases import CASES
from ranks import SCRIPT, environment
from run import Bench

from herringbone_contract.prediction.devices import Link, device_named

_PREDICT = ("-c", "import sys; from herringbone_parallel.predict import main; sys.exit(main())")
# 400 Gbit/s for each host, of which messages reach nine tenths.
_NETWORK = Link(latency_s=2e-5, bytes_per_second=45e9)


class Timed(NamedTuple):
    """One run: processor and elapsed seconds of the process, its largest memory in bytes, and its output.

    The system counts the memory of this process as well until the new one has started, so less than that is not seen.
    """

    processor_s: float
    elapsed_s: float
    peak_bytes: int
    answer: dict[str, Any]


def hosts_of(name: str) -> dict[str, Any]:
    """Return the hosts of a question."""
    if name == "16 H100":
        h100 = device_named("NVIDIA H100 80GB HBM3")
        return {
            "name": "h100",
            "count": 2,
            "ranks_per_host": 8,
            "devices": 8,
            "device": _plain(h100),
            "link": _plain(_NETWORK),
        }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = {"name": "cpu", "memory_bytes": memory, "operations_per_second": {"float32": 5e10}}
    cpu = {**device, "bytes_per_second": 1e10}
    return {"name": "local_process", "count": 1, "ranks_per_host": 4, "device": cpu, "cores": os.cpu_count()}


def question_of(measurement: Path, library: str, name: str, limit: int) -> dict[str, Any]:
    """Return the question for the best layouts of a script on some hosts."""
    hosts = hosts_of(name)
    parallel: dict[str, Any] = {"enabled": True, "parameters": {"hybrid_shard_degree": 0}}
    distribution: dict[str, Any] = {"torch_distributed": {"enabled": True}}
    if library == "smp":
        parallel["parameters"] = {"partitions": 1, "ddp": True}
        distribution = {"mpi": {"enabled": True, "processes_per_host": hosts["ranks_per_host"]}}
    return {
        "measurement": str(measurement),
        "hosts": hosts,
        "distribution": {**distribution, "smdistributed": {"modelparallel": parallel}},
        "search": {"limit": limit},
    }


def ask(question: dict[str, Any]) -> Timed:
    """Answer a question in a new process."""
    return run_timed(_PREDICT, environment(None, 1, 0, 1), json.dumps(question).encode())


def run_timed(words: Sequence[str], variables: Mapping[str, str], text: bytes = b"") -> Timed:
    """Run Python with these words; its output is JSON or empty."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        source.write(text)
        source.seek(0)
        process = subprocess.Popen([sys.executable, *words], stdin=source, stdout=target, env=dict(variables))
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{words[1]} ended with {process.returncode}")
        target.seek(0)
        output = target.read()
    seconds = usage.ru_utime + usage.ru_stime
    return Timed(seconds, elapsed, usage.ru_maxrss * 1024, json.loads(output) if output.strip() else {})


def measured(model: str, size: str, folder: Path) -> dict[str, Any]:
    """Measure a step of a plain script with one sample, print its line, and return its figures."""
    path = folder / f"{model}-measured.json"
    words = ["-m", "herringbone_parallel.torch.measure", "--output", str(path), "--ranks", "1", str(SCRIPT)]
    words += ["--model", model, "--size", size, "--batch", "1"]
    one = run_timed(words, environment(None, 1, 0, 1))
    # The model is counted from the measurement, so that the line says what was measured.
    parameters = sum(math.prod(parameter[2]) for parameter in json.loads(path.read_bytes())["parameters"])
    figures = {
        "parameters": parameters,
        "processor_s": round(one.processor_s, 2),
        "elapsed_s": round(one.elapsed_s, 2),
        "peak_mb": round(one.peak_bytes / 1e6, 1),
    }
    print(f"measured {model}: {parameters / 1e9:.2f}e9 parameters, {one.processor_s:.1f} s of a processor,", end="")
    print(f" {one.elapsed_s:.1f} s, {one.peak_bytes / 1e6:.0f} MB", flush=True)
    return figures


def profile(question: dict[str, Any], path: Path) -> None:
    """Write the profile of one answer, without the start of the process."""
    from herringbone_parallel.predict import reply_to

    profiler = cProfile.Profile()
    profiler.runcall(reply_to, json.dumps(question).encode())
    profiler.dump_stats(path)


def _plain(struct: object) -> dict[str, Any]:
    import msgspec

    return {name: value for name, value in msgspec.to_builtins(struct).items() if value is not None}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(CASES), default="bert-large")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank's step (%(default)s)")
    parser.add_argument("--measure", choices=sorted(CASES), help="time the measurement of this model instead")
    parser.add_argument("--limit", type=int, default=50, help="rows of the table (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="answers of which the median counts (%(default)s)")
    parser.add_argument("--libraries", nargs="+", choices=["smp", "sagemaker"], default=["smp", "sagemaker"])
    parser.add_argument("--hosts", nargs="+", choices=["16 H100", "4 CPU ranks"], default=["16 H100", "4 CPU ranks"])
    parser.add_argument("--profile", type=Path, help="file for the profile of the last question")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one measurement (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder in which measurements stay")
    # Measurements compute nothing, so they need no device of the hosts in the question.
    parser.set_defaults(device="cpu")
    return parser.parse_args()


def main() -> int:
    options = parse()
    rows: list[dict[str, Any]] = []
    if not options.measure:
        print(f"{'script':10} {'hosts':12} {'layouts':>8} {'rows':>5} {'CPU s':>7} {'elapsed':>8}  best")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if options.measure:
            print(json.dumps(measured(options.measure, options.size, folder)))
            return 0
        bench = Bench(options, folder)
        for library in options.libraries:
            measurement = bench.measurement(options.model, library)
            for name in options.hosts:
                question = question_of(measurement, library, name, options.limit)
                rows.append({"script": library, "hosts": name, **row(question, library, options.repeats)})
                if options.profile:
                    profile(question, options.profile)
    print(json.dumps({"model": options.model, "batch": options.batch, "limit": options.limit, "rows": rows}))
    return 0


def row(question: dict[str, Any], script: str, repeats: int) -> dict[str, Any]:
    """Ask the question several times, print its line, and return its figures: medians of times."""
    timed = [ask(question) for _ in range(repeats)]
    layouts = timed[0].answer["layouts"]
    compared = next((note for note in timed[0].answer.get("notes", []) if "were compared" in note), "")
    best = {degree: count for degree, count in layouts[0]["mesh"].items() if count > 1}
    figures = {
        "layouts": int(compared.split()[0]) if compared else len(layouts),
        "rows": len(layouts),
        "processor_s": round(statistics.median(one.processor_s for one in timed), 3),
        "elapsed_s": round(statistics.median(one.elapsed_s for one in timed), 3),
    }
    print(f"{script:10} {question['hosts']['name']:12} {figures['layouts']:8} {figures['rows']:5}", end="")
    print(f" {figures['processor_s']:7.2f} {figures['elapsed_s']:8.2f}  {best}", flush=True)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
