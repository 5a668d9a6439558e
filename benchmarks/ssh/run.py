"""How long it takes from fit() to the script's first line on three machines over ssh; bare mpirun beside it, in turns.

Usage: python benchmarks/ssh/run.py [--repeats 7]. Root; see tests/ssh/setup. The last line is JSON: medians in seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.ssh.machines import Machines, missing, stopped_masters  # noqa: E402

from herringbone import Estimator, TrainingJob  # noqa: E402 - found on the path of the line above
from herringbone.backends.ssh.backend import SshBackend  # noqa: E402
from herringbone.backends.ssh.openssh import OpenSSHTransport  # noqa: E402
from herringbone.jobs.home import Home  # noqa: E402

NUM_MACHINES = 3
SCRIPT = "print('first line', flush=True)\n"
AIM_SECONDS, AIM_RATIO = 2.0, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="rounds that count, after one that does not")
    options = parser.parse_args()
    if (why := missing()) is not None:
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="hbs") as name, Machines(NUM_MACHINES, Path(name)) as machines:
        rounds = [round_of(machines, Path(name)) for _ in range(options.repeats + 1)][1:]
    print(json.dumps(summary(rounds)))


def round_of(machines: Machines, folder: Path) -> dict[str, float]:
    """Return the seconds of each way, taken one after the other; nothing else of ours runs meanwhile."""
    with tempfile.TemporaryDirectory(prefix="hbc") as control, stopped_masters(Path(control)):
        seconds = {"fit": fit(machines, folder, control)}
        # A second job within a minute finds ssh's connections open.
        seconds["fit_again"] = fit(machines, folder, control)
    seconds["mpirun"] = mpirun(machines)
    print({way: round(value, 3) for way, value in seconds.items()}, file=sys.stderr)
    return seconds


def fit(machines: Machines, folder: Path, control: str) -> float:
    with changed_to(folder):
        Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
        Path("train.py").write_text(SCRIPT)
        home = Home(folder / "home")
        backend = SshBackend(home, OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control))
        estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=NUM_MACHINES)
        began = time.monotonic()
        # What fit() does, on another way to the machines than the user's own.
        job = TrainingJob.submit(estimator._plan(backend, None, None), backend)
        first = None
        for line in job.logs(follow=True):
            if line.rank is not None and first is None:
                first = time.monotonic() - began
    assert first is not None, job.failure
    return first


def mpirun(machines: Machines) -> float:
    agent = f"ssh -F {machines.config} -o BatchMode=yes"
    began = time.monotonic()
    command = ["mpirun.openmpi", "--allow-run-as-root", "--host", ",".join(machines.names), "-n", str(NUM_MACHINES)]
    command += ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", machines.subnet]
    command += [sys.executable, "-u", "-c", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "first line" in running.stdout.readline()
        seconds = time.monotonic() - began
        running.stdout.read()
    return seconds


def summary(rounds: list[dict[str, float]]) -> dict[str, object]:
    medians = {way: round(statistics.median(each[way] for each in rounds), 3) for way in rounds[0]}
    met = medians["fit"] <= AIM_SECONDS or medians["fit"] <= AIM_RATIO * medians["mpirun"]
    return {"machines": NUM_MACHINES, "rounds": len(rounds), "load": os.getloadavg()[0], **medians, "met": met}


@contextlib.contextmanager
def changed_to(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
