"""Measure the time that `fit()` adds around the user's script, and compare with the bare interpreter and mpirun.

Usage: python benchmarks/launch/run.py [--repeats 10]. The last line is JSON: medians in seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from herringbone import Estimator

# The script writes its times to a file, because bare mpirun splits and mixes the lines of its ranks.
SCRIPT = """
import os, time
first = time.time()
print("first", flush=True)
last = time.time()
print("last", flush=True)
with open(os.path.join(os.environ["STAMPS"], str(os.getpid())), "w") as stamps:
    stamps.write(f"{first} {last}")
"""
MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
# Seconds before the script's first line, and after its last.
Times = tuple[float, float]


def around(stamps: Path, action: Callable[[], object]) -> Times:
    """Return the time to the ranks' latest first line, and the time from their latest last line to the end."""
    for stamp in stamps.iterdir():
        stamp.unlink()
    start = time.time()
    action()
    end = time.time()
    pairs = [tuple(map(float, path.read_text().split())) for path in stamps.iterdir()]
    return max(first for first, _ in pairs) - start, end - max(last for _, last in pairs)


def bare(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True)


def fitted(estimator: Estimator) -> Callable[[], object]:
    def fit() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            estimator.fit()

    return fit


def mpirun() -> list[str]:
    program = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
    return [program, "-n", "2", "--map-by", ":OVERSUBSCRIBE"]


def measure(folder: Path, repeats: int) -> dict[str, list[Times]]:
    script, stamps = folder / "script.py", folder / "stamps"
    script.write_text(SCRIPT)
    stamps.mkdir()
    os.environ["STAMPS"] = str(stamps)
    shared = {"entry_point": str(script), "instance_type": "local_process", "base_job_name": "launch"}
    cases = {
        "floor_plain": bare([sys.executable, str(script)]),
        "plain": fitted(Estimator(**shared)),
        "floor_mpi": bare([*mpirun(), sys.executable, str(script)]),
        "mpi": fitted(Estimator(**shared, distribution=MPI)),
    }
    times: dict[str, list[Times]] = {name: [] for name in cases}
    for repeat in range(-1, repeats):
        for name, case in cases.items():
            pair = around(stamps, case)
            if repeat >= 0:  # the first round fills the file cache and writes byte code
                times[name].append(pair)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # pip writes byte code when it installs; without it every start would compile the supervisor's modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        times = measure(Path(folder), arguments.repeats)
    result: dict[str, float] = {}
    print(f"{'':14}{'to first line':>26}{'from last line':>26}   (seconds: median [min max])")
    for name, pairs in times.items():
        cells = []
        for side, values in (("start", [pair[0] for pair in pairs]), ("end", [pair[1] for pair in pairs])):
            result[f"{name}_{side}_s"] = round(statistics.median(values), 4)
            cells.append(f"{statistics.median(values):.3f} [{min(values):.3f} {max(values):.3f}]")
        print(f"{name:14}{cells[0]:>26}{cells[1]:>26}")
    for name in ("plain", "mpi"):
        for side in ("start", "end"):
            ours, floor = result[f"{name}_{side}_s"], result[f"floor_{name}_{side}_s"]
            result[f"{name}_{side}_over_floor_s"] = round(ours - floor, 4)
            result[f"{name}_{side}_ratio"] = round(ours / floor, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
