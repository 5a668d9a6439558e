"""Time a trivial job in containers: our SDK, the peer's two SDKs, and Docker and mpirun alone.

Usage: python benchmarks/local_mode/run.py [--repeats 5] [--without-peers]. The last line is JSON: medians in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import floor

from herringbone.engine.locate import find_engine
from herringbone.images.find import find

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from tests.interop import peer  # noqa: E402 - found on the path of the line above

SCRIPT = HERE / "hello.py"
# Hosts, and ranks per host.
CASES = {"1x1": (1, 1), "2x2mpi": (2, 2)}
MEASURES = ("first_line", "total", "process")
PEERS = ("peer_v2", "peer_v3")
NO_MPI = "cannot run: it names the network interface ethwe, containers have eth0, and mpirun refuses a second name"
# The peer sleeps 30 s after an MPI job, so a warm-up would cost half a minute for little benefit.
NO_WARM_UP = ("peer_v2", "2x2mpi")


@dataclass
class LineRecorder:
    """Records the output lines of a command, with the time of each line."""

    environ: Mapping[str, str]
    lines: list[tuple[float, str]] = field(default_factory=list)

    def listen(self, command: list[str]) -> None:
        """Run a command to its end. Raises `SystemExit` with its last lines if it fails."""
        with subprocess.Popen(
            command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            self.lines += [(time.time(), line) for line in process.stdout]
        if process.returncode:
            output = "".join(line for _, line in self.lines[-40:])
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}:\n{output}")

    def mark(self, word: str) -> float:
        """Return the time that a driver printed as `word time`."""
        return next(float(line.split()[1]) for _, line in self.lines if line.startswith(f"{word} "))

    def first_line(self, ranks: int) -> float:
        """Return the time at which the last rank printed its first line."""
        # Reversed, so that a rank's earliest line is the one that stays in the dict.
        first_lines = {
            rank: time_s
            for time_s, line in reversed(self.lines)
            for rank in range(ranks)
            if f"first line of rank {rank}" in line
        }
        if len(first_lines) < ranks:
            output = "".join(line for _, line in self.lines[-40:])
            raise SystemExit(f"only {len(first_lines)} of {ranks} ranks printed a first line:\n{output}")
        return max(first_lines.values())


Times = dict[str, float]
Runner = Callable[[str], Times]


def drive(command: list[str], environ: Mapping[str, str], case: str) -> Times:
    """Run one job in a new Python process."""
    hosts, ranks = CASES[case]
    recorder = LineRecorder({**environ, "PYTHONUNBUFFERED": "1"})
    start = time.time()
    recorder.listen(command)
    end = time.time()
    fit = recorder.mark("fit")
    first = recorder.first_line(hosts * ranks)
    return {"first_line": first - fit, "total": recorder.mark("done") - fit, "process": end - start}


def bare(image: str, case: str) -> Times:
    """Run the script with the `docker` command alone."""
    hosts, ranks = CASES[case]
    recorder = LineRecorder(os.environ)
    start = time.time()
    if hosts == 1:
        floor.alone(image, SCRIPT, recorder.listen)
    else:
        with tempfile.TemporaryDirectory() as folder:
            floor.mpi(image, SCRIPT, Path(folder), recorder.listen)
    total = time.time() - start
    return {"first_line": recorder.first_line(hosts * ranks) - start, "total": total, "process": total}


def peer_runners(compose: Path, image: str, stack: ExitStack) -> dict[tuple[str, str], Runner]:
    """Return the runners of the peer's two SDKs. 2.x needs its toolkit in the image, 3.x runs in our image."""
    for version in (2, 3):
        if not peer.python(version).exists():
            raise SystemExit(
                f"{peer.python(version)} is missing: run benchmarks/local_mode/setup, or give --without-peers"
            )
    setup = subprocess.run([ROOT / "tests/interop/setup"], check=True, stdout=subprocess.PIPE, text=True)
    environ = stack.enter_context(peer.surroundings(compose))

    def second(case: str) -> Times:
        job: dict[str, object] = {
            "image_uri": setup.stdout.strip(),
            "script": str(SCRIPT),
            "instance_count": CASES[case][0],
        }
        if CASES[case] != (1, 1):
            job["distribution"] = {"mpi": {"enabled": True, "processes_per_host": CASES[case][1]}}
        return drive([str(peer.python(2)), str(ROOT / "tests/interop/fit_v2.py"), json.dumps(job)], environ, case)

    def third(case: str) -> Times:
        return drive([str(peer.python(3)), str(HERE / "peer_v3.py"), image, str(SCRIPT)], environ, case)

    return {("peer_v2", "1x1"): second, ("peer_v2", "2x2mpi"): second, ("peer_v3", "1x1"): third}


def runners(arguments: argparse.Namespace, stack: ExitStack) -> dict[tuple[str, str], Runner]:
    """Return the runners by name and case."""
    home = stack.enter_context(tempfile.TemporaryDirectory())
    environ = {**os.environ, "HERRINGBONE_HOME": f"{home}/home"}

    def ours(case: str) -> Times:
        hosts, ranks = CASES[case]
        command = [sys.executable, str(HERE / "ours.py"), arguments.image, str(SCRIPT), str(hosts), str(ranks)]
        return drive(command, environ, case)

    result: dict[tuple[str, str], Runner] = {}
    for case in CASES:
        result |= {("ours", case): ours, ("floor", case): partial(bare, arguments.image)}
    if arguments.without_peers:
        return result
    try:
        compose = peer.compose()
    except LookupError as error:
        raise SystemExit(f"{error}, or omit the peer with --without-peers") from error
    return result | peer_runners(compose, arguments.image, stack)


def measure(cases: Mapping[tuple[str, str], Runner], repeats: int) -> dict[tuple[str, str], list[Times]]:
    """Run all cases in turn. Each round starts with another case; the first round does not count."""
    order = list(cases)
    times: dict[tuple[str, str], list[Times]] = {key: [] for key in order}
    for repeat in range(-1, repeats):
        for key in order[repeat:] + order[:repeat] if repeat > 0 else order:
            if repeat < 0 and key == NO_WARM_UP:
                continue
            print(f"{'warm-up' if repeat < 0 else repeat + 1}: {' '.join(key)}", file=sys.stderr)
            measured = cases[key](key[1])
            if repeat >= 0:
                times[key].append(measured)
    return times


def summary(times: Mapping[tuple[str, str], list[Times]]) -> dict[str, object]:
    """Print a table. Return the medians by name and case, and the ratios that have targets."""
    result: dict[str, dict[str, float | None]] = {}
    print(f"{'':18}" + "".join(f"{measure:>24}" for measure in MEASURES) + "   (seconds: median [min max])")
    for (name, case), runs in times.items():
        cells = ""
        for measure in MEASURES:
            values = [run[measure] for run in runs]
            result.setdefault(f"{name}_{measure}_s", dict.fromkeys(CASES))[case] = round(statistics.median(values), 3)
            cells += f"{f'{statistics.median(values):.2f} [{min(values):.2f} {max(values):.2f}]':>24}"
        print(f"{name + ' ' + case:18}{cells}")
    ratios: dict[str, object] = {
        f"{measure}_over_floor": {case: over(times, "ours", "floor", case, measure) for case in CASES}
        for measure in MEASURES[:2]
    }
    if any(name in PEERS for name, _ in times):
        ratios["process_over_best_peer"] = {
            case: max(over(times, "ours", other, case, "process") for other in PEERS if (other, case) in times)
            for case in CASES
        }
        ratios["peer_v3_2x2mpi"] = NO_MPI
    return {**result, **ratios}


def over(times: Mapping[tuple[str, str], list[Times]], name: str, other: str, case: str, measure: str) -> float:
    """Return the median of the rounds' ratios. Other work on the machine slows both runs of a round."""
    pairs = zip(times[name, case], times[other, case], strict=True)
    return round(statistics.median(run[measure] / reference[measure] for run, reference in pairs), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--image", help="an image of ours (default: the newest PyTorch image for CPUs)")
    parser.add_argument("--without-peers", action="store_true")
    arguments = parser.parse_args()
    if arguments.image is None:
        arguments.image = find(find_engine(os.environ, Path.home()), framework="pytorch", device="cpu")
        if arguments.image is None:
            raise SystemExit("there is no PyTorch image of ours: run `herringbone images build pytorch`")
    print(f"image: {arguments.image}", file=sys.stderr)
    with ExitStack() as stack:
        times = measure(runners(arguments, stack), arguments.repeats)
    result = summary(times)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
