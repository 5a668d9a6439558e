"""How long a trivial job takes in containers: ours, the peer's two SDKs, and what Docker and mpirun need by themselves.

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
# Hosts and ranks of each.
CASES = {"1x1": (1, 1), "2x2mpi": (2, 2)}
MEASURES = ("first_line", "total", "process")
PEERS = ("peer_v2", "peer_v3")
NO_MPI = "cannot run: it names the network interface ethwe, containers have eth0, and mpirun refuses a second name"
# Of the peer's 2x2mpi a warm-up would cost half a minute and show nothing.
NO_WARM_UP = ("peer_v2", "2x2mpi")


@dataclass
class Ear:
    """Hears a command's lines, and notes when each came."""

    environ: Mapping[str, str]
    lines: list[tuple[float, str]] = field(default_factory=list)

    def listen(self, command: list[str]) -> None:
        """Run a command to its end. Raises `SystemExit` with what it said when it fails."""
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
            said = "".join(line for _, line in self.lines[-40:])
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}:\n{said}")

    def mark(self, word: str) -> float:
        """Return the time that a driver printed behind a word of its own."""
        return next(float(line.split()[1]) for _, line in self.lines if line.startswith(f"{word} "))

    def first_line(self, ranks: int) -> float:
        """Return when the first line of the last rank came."""
        seen = {
            rank: at
            for at, line in reversed(self.lines)
            for rank in range(ranks)
            if f"first line of rank {rank}" in line
        }
        if len(seen) < ranks:
            raise SystemExit(
                f"{len(seen)} of {ranks} ranks were heard:\n{''.join(line for _, line in self.lines[-40:])}"
            )
        return max(seen.values())


Times = dict[str, float]
Runner = Callable[[str], Times]


def drive(command: list[str], environ: Mapping[str, str], case: str) -> Times:
    """Run one job in a fresh Python."""
    hosts, ranks = CASES[case]
    ear = Ear({**environ, "PYTHONUNBUFFERED": "1"})
    start = time.time()
    ear.listen(command)
    end = time.time()
    fit = ear.mark("fit")
    first = ear.first_line(hosts * ranks)
    return {"first_line": first - fit, "total": ear.mark("done") - fit, "process": end - start}


def bare(image: str, case: str) -> Times:
    """Do the same with the `docker` command alone."""
    hosts, ranks = CASES[case]
    ear = Ear(os.environ)
    start = time.time()
    if hosts == 1:
        floor.alone(image, SCRIPT, ear.listen)
    else:
        with tempfile.TemporaryDirectory() as folder:
            floor.mpi(image, SCRIPT, Path(folder), ear.listen)
    total = time.time() - start
    return {"first_line": ear.first_line(hosts * ranks) - start, "total": total, "process": total}


def two_of_the_peer(compose: Path, image: str, stack: ExitStack) -> dict[tuple[str, str], Runner]:
    """Return the runs of the peer's two SDKs: 2.x wants its toolkit in the image, 3.x needs nothing there."""
    for version in (2, 3):
        if not peer.python(version).exists():
            raise SystemExit(
                f"{peer.python(version)} is not there: run benchmarks/local_mode/setup, or give --without-peers"
            )
    made = subprocess.run([ROOT / "tests/interop/setup"], check=True, stdout=subprocess.PIPE, text=True)
    environ = stack.enter_context(peer.surroundings(compose))

    def second(case: str) -> Times:
        job: dict[str, object] = {
            "image_uri": made.stdout.strip(),
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
    """Return who runs which case."""
    home = stack.enter_context(tempfile.TemporaryDirectory())
    environ = {**os.environ, "HERRINGBONE_HOME": f"{home}/home"}

    def ours(case: str) -> Times:
        hosts, ranks = CASES[case]
        command = [sys.executable, str(HERE / "ours.py"), arguments.image, str(SCRIPT), str(hosts), str(ranks)]
        return drive(command, environ, case)

    found: dict[tuple[str, str], Runner] = {}
    for case in CASES:
        found |= {("ours", case): ours, ("floor", case): partial(bare, arguments.image)}
    if arguments.without_peers:
        return found
    try:
        compose = peer.compose()
    except LookupError as error:
        raise SystemExit(f"{error}, or leave the peer out with --without-peers") from error
    return found | two_of_the_peer(compose, arguments.image, stack)


def measure(found: Mapping[tuple[str, str], Runner], repeats: int) -> dict[tuple[str, str], list[Times]]:
    """Run all in turn, each time beginning with another; the first round is not counted."""
    order = list(found)
    times: dict[tuple[str, str], list[Times]] = {key: [] for key in order}
    for turn in range(-1, repeats):
        for key in order[turn:] + order[:turn] if turn > 0 else order:
            if turn < 0 and key == NO_WARM_UP:
                continue
            print(f"{'warm-up' if turn < 0 else turn + 1}: {' '.join(key)}", file=sys.stderr)
            measured = found[key](key[1])
            if turn >= 0:
                times[key].append(measured)
    return times


def summary(times: Mapping[tuple[str, str], list[Times]]) -> dict[str, object]:
    """Print a table; return the medians by name and case, and the ratios that are aimed at."""
    result: dict[str, dict[str, float | None]] = {}
    print(f"{'':18}" + "".join(f"{measure:>24}" for measure in MEASURES) + "   (seconds: median [min max])")
    for (who, case), runs in times.items():
        cells = ""
        for measure in MEASURES:
            values = [run[measure] for run in runs]
            result.setdefault(f"{who}_{measure}_s", dict.fromkeys(CASES))[case] = round(statistics.median(values), 3)
            cells += f"{f'{statistics.median(values):.2f} [{min(values):.2f} {max(values):.2f}]':>24}"
        print(f"{who + ' ' + case:18}{cells}")
    ratios: dict[str, object] = {
        f"{measure}_over_floor": {case: over(times, "ours", "floor", case, measure) for case in CASES}
        for measure in MEASURES[:2]
    }
    if any(who in PEERS for who, _ in times):
        ratios["process_over_best_peer"] = {
            case: max(over(times, "ours", who, case, "process") for who, its in times if its == case and who in PEERS)
            for case in CASES
        }
        ratios["peer_v3_2x2mpi"] = NO_MPI
    return {**result, **ratios}


def over(times: Mapping[tuple[str, str], list[Times]], who: str, other: str, case: str, measure: str) -> float:
    """Return the median of the rounds' ratios: what else the machine does bears on both of a round."""
    pairs = zip(times[who, case], times[other, case], strict=True)
    return round(statistics.median(one[measure] / two[measure] for one, two in pairs), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--image", help="an image of ours; the newest PyTorch one for CPUs by default")
    parser.add_argument("--without-peers", action="store_true")
    arguments = parser.parse_args()
    if arguments.image is None:
        arguments.image = find(find_engine(os.environ, Path.home()), framework="pytorch", device="cpu")
        if arguments.image is None:
            raise SystemExit("no image of ours: herringbone images build pytorch")
    print(f"image: {arguments.image}", file=sys.stderr)
    with ExitStack() as stack:
        times = measure(runners(arguments, stack), arguments.repeats)
    result = summary(times)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
