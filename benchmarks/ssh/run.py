"""Measure the time from fit() to the script's first line on three machines over ssh, and compare with bare mpirun.

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
from herringbone.api.planning import plan_request  # noqa: E402
from herringbone.backends.ssh.backend import SshBackend  # noqa: E402
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport  # noqa: E402
from herringbone.records.home import Home  # noqa: E402

NUM_MACHINES = 3
SCRIPT = "print('first line', flush=True)\n"
AIM_SECONDS, AIM_RATIO = 2.0, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="counted rounds, after one warm-up round")
    options = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="hbs") as name, Machines(NUM_MACHINES, Path(name)) as machines:
        rounds = [round_of(machines, Path(name)) for _ in range(options.repeats + 1)][1:]
    print(json.dumps(summary(rounds)))


def round_of(machines: Machines, folder: Path) -> dict[str, float]:
    """Return the seconds of each variant. The variants run one after the other, so they do not share the cores."""
    with tempfile.TemporaryDirectory(prefix="hbc") as control, stopped_masters(Path(control)):
        seconds = {"fit": fit(machines, folder, control)}
        # ssh keeps its connections open for a minute, so the second job reuses them.
        seconds["fit_again"] = fit(machines, folder, control)
    seconds["mpirun"] = mpirun(machines)
    print({variant: round(value, 3) for variant, value in seconds.items()}, file=sys.stderr)
    return seconds


def fit(machines: Machines, folder: Path, control: str) -> float:
    """Run a job over ssh. Return the seconds until the first line of a rank."""
    with changed_to(folder):
        Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
        Path("train.py").write_text(SCRIPT)
        home = Home(folder / "home")
        backend = SshBackend(home, OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control))
        estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=NUM_MACHINES)
        began = time.monotonic()
        # These are the steps of fit(), but with the benchmark's ssh configuration instead of the user's.
        job = TrainingJob.submit(plan_request(estimator._asked(None), backend), backend)
        first = None
        for line in job.logs(follow=True):
            if line.rank is not None and first is None:
                first = time.monotonic() - began
    assert first is not None, job.failure
    return first


def mpirun(machines: Machines) -> float:
    """Run the script with Open MPI over the same ssh. Return the seconds until the first line."""
    agent = f"ssh -F {machines.config} -o BatchMode=yes"
    began = time.monotonic()
    command = ["mpirun.openmpi", "--allow-run-as-root", "--host", ",".join(machines.names), "-n", str(NUM_MACHINES)]
    command += ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", machines.subnet]
    command += [sys.executable, "-u", "-c", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "first line" in process.stdout.readline()
        seconds = time.monotonic() - began
        process.stdout.read()  # without a reader, mpirun would block on a full pipe
    return seconds


def summary(rounds: list[dict[str, float]]) -> dict[str, object]:
    medians = {variant: round(statistics.median(row[variant] for row in rounds), 3) for variant in rounds[0]}
    met = medians["fit"] <= AIM_SECONDS or medians["fit"] <= AIM_RATIO * medians["mpirun"]
    return {"machines": NUM_MACHINES, "rounds": len(rounds), "load": os.getloadavg()[0], **medians, "met": met}


@contextlib.contextmanager
def changed_to(folder: Path) -> Iterator[None]:
    """Change the working folder for the time of the `with` block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
