"""Plant twelve hangs, and twelve long works that are none, in jobs on each engine.

Usage: `.venv/bin/python -m tests.campaigns.hangs [--engines process,docker,ssh,slurm] [--faults busy,saves]` from the
root of the repository, as root. `tests/docker/engine`, `tests/ssh/setup` and `tests/slurm/setup` make what the engines
need; `--image` names an image of Herringbone. The scripts are in `tests/hangs/faults.py`, and the limit is 4 s.

A hang must cost one restart, and what is none must cost none; the weights are those of an undisturbed run. The last
line is JSON: what is wrong of each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport
from herringbone.records.home import Home
from tests.hangs.faults import HANGS, INNOCENTS, SCRIPT

LIMIT = 4
LASTS = 3.4 * LIMIT
_FREEZER = "herringbone-hangs"
_SECONDS = 150.0
WEIGHTS = "weights [9.0, 18.0, 27.0, 36.0]"
# A container may neither mount nor freeze, and the tests' machines of `ssh:` do not see control groups.
_IMPOSSIBLE = {"docker": ("fuse", "frozen"), "ssh": ("frozen",)}


@contextlib.contextmanager
def engine(name: str, home: Path, image: str | None, heartbeat: str = "1") -> Iterator[dict[str, Any]]:
    """Start what an engine needs, and yield the arguments of estimators on it.

    `backend` is one of its own, which has a `heartbeat`, and `machines` are those of `ssh`.
    """
    if name == "process":
        yield {"instance_type": "local_process"}
    elif name == "docker":
        yield {"instance_type": "local", "image_uri": image}
    elif name == "slurm":
        from tests.slurm.cluster import Cluster

        with tempfile.TemporaryDirectory(prefix="hbc-") as folder, Cluster(Path(folder)) as cluster:
            os.environ["SLURM_CONF"] = str(cluster.configuration)
            yield {"instance_type": "slurm:gpu", "slurm": {"cpus": 1}}
    else:
        from tests.ssh.machines import Machines, stopped_masters

        with tempfile.TemporaryDirectory(prefix="hbs") as folder, Machines(3, Path(folder)) as machines:
            control = tempfile.mkdtemp(prefix="hbc")
            with stopped_masters(Path(control)):
                transport = OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control)
                Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
                environ = {"HERRINGBONE_HEARTBEAT": heartbeat, "HERRINGBONE_JOIN_TIMEOUT": "60"}
                yield {
                    "machines": machines,
                    "instance_type": "ssh:hosts.yaml",
                    "backend": SshBackend(Home(home), transport, environ=environ),
                }


@contextlib.contextmanager
def in_folder(script: str) -> Iterator[Path]:
    """Make a folder with a home and a script the current one."""
    with tempfile.TemporaryDirectory(prefix="hbh-", ignore_cleanup_errors=True) as folder:
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        os.chdir(folder)
        Path("train.py").write_text(script)
        yield Path(folder)


def submit(settings: dict[str, Any], **options: Any) -> TrainingJob:
    """Submit a job of the script to the engine of these settings."""
    own = dict(settings)
    backend, _ = own.pop("backend", None), own.pop("machines", None)
    estimator = Estimator("train.py", **options, **own)
    if backend is None:
        return estimator.fit(logs=False, wait=False)
    return TrainingJob.submit(plan_request(estimator._asked(None), backend, None), backend)


def run(settings: dict[str, Any], fault: str) -> tuple[str, float]:
    """Run one job; return what is wrong with it, "" for nothing, and the seconds that it took."""
    began = time.monotonic()
    job = submit(
        settings,
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        hang_timeout=LIMIT,
        max_retry_attempts=3,
        environment={"FAULT": fault, "LASTS": str(LASTS), "FREEZER": _FREEZER, "OMP_NUM_THREADS": "1"},
    )
    with contextlib.suppress(TimeoutError):
        job.wait(timeout=_SECONDS)
    lines = [line.text for line in job.logs()]
    _thaw()
    _unmount()
    restarts = [line for line in lines if line.startswith("attempt ") and " of " in line]
    status = job.status
    if status not in ("Completed", "Failed", "Stopped"):
        job.stop(grace=1)
    wrong = [
        *([] if status == "Completed" else [f"it is {status}: {lines[-1:]}"]),
        *([] if len(restarts) == (fault in HANGS) else [f"{len(restarts)} restarts: {restarts}"]),
        *([] if WEIGHTS in lines else ["the weights are not those of an undisturbed run"]),
    ]
    return "; ".join(wrong), time.monotonic() - began


def _unmount() -> None:
    """Remove the mounts of `fuse`, whose servers have ended."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device, place, *_ = line.split()
        if device == "stuck":
            subprocess.run(["umount", "-l", place], check=False)
            Path(place).rmdir()


def _thaw() -> None:
    group = Path("/sys/fs/cgroup/freezer", _FREEZER)
    with contextlib.suppress(OSError):
        (group / "freezer.state").write_text("THAWED")
        time.sleep(0.5)
        group.rmdir()


def main() -> int:
    """Run all pairs of an engine and a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="process,docker,ssh,slurm")
    parser.add_argument("--faults", default=",".join([*HANGS, *INNOCENTS]))
    parser.add_argument("--image")
    options = parser.parse_args()
    found: dict[str, str] = {}
    with in_folder(SCRIPT) as folder:
        for name in options.engines.split(","):
            with engine(name, folder / "home", options.image) as settings:
                for fault in options.faults.split(","):
                    if fault in _IMPOSSIBLE.get(name, ()):
                        continue
                    found[f"{name} {fault}"], seconds = run(settings, fault)
                    print(f"{name:8} {fault:14} {seconds:5.1f} s  {found[f'{name} {fault}'] or 'right'}", flush=True)
    wrong = {pair: text for pair, text in found.items() if text}
    print(json.dumps({"pairs": len(found), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
