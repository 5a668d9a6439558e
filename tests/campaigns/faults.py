"""Break running `local_process` jobs in every way we know; check who is named, the state, and that nothing is left.

Usage: python tests/campaigns/faults.py [--short] [--only TEXT] [--at-once 3]. Needs root for full disks, limits of
processes and an engine of its own, which the long form starts where dockerd is installed. The last line is JSON.

Each fault runs in a Python and a home of its own. A fault passes if the job ends in the expected state, its failure
names the culprit, its log and its row can be read, and no process, run folder or socket of the job remains.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fault_kinds import (
    CONTAINER,
    LAYOUTS,
    MPI,
    SCRIPT,
    SHORT,
    Fault,
    Running,
    processes_of,
    signal_faults,
    world_faults,
)
from surroundings import IMAGE, SHARES, pids_group, surrounding_faults

from herringbone import Estimator, TrainingJob
from herringbone.records.home import find_home
from herringbone_contract.errors import HerringboneError

READY_SECONDS = 40.0
END_SECONDS = 60.0


def run(fault: Fault, home: Path, temporary: Path) -> list[str]:
    """Run one fault; return what is wrong, nothing if all is well."""
    hosts, distribution = LAYOUTS.get(fault.layout, (1, None))
    script, text = temporary / "train.py", SCRIPT.replace("BODY", fault.body)
    options: dict[str, object] = {"instance_type": "local_process"}
    if fault.layout == CONTAINER:
        options = {"instance_type": "local", "image_uri": IMAGE, "enable_network_isolation": True}
        # The image has no program but Python.
        text = text.replace('["sleep", "600"]', '[sys.executable, "-c", "import time; time.sleep(600)"]')
    script.write_text(text)
    estimator = Estimator(
        entry_point=str(script),
        **options,
        instance_count=hosts,
        distribution=distribution,
        environment={"SECONDS_TO_RUN": str(fault.seconds)},
        base_job_name="fault",
        metric_definitions=[{"Name": "rank", "Regex": r"ready (\d+)"}],
    )
    if fault.expect[0] == "refused":
        return [*check_refusal(fault, estimator), *check_rest(home, temporary)]
    job = estimator.fit(wait=False)
    num_ranks = hosts * (2 if distribution is MPI else 1)
    ranks, children = await_ready(job, num_ranks)
    fault.act(Running(job, home, temporary, ranks, children))
    return [*check_end(fault, job), *check_rest(home, temporary)]


def await_ready(job: TrainingJob, num_ranks: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the pids of all ranks and of their children once all are ready."""
    ranks: dict[int, int] = {}
    children: dict[int, int] = {}
    deadline = time.monotonic() + READY_SECONDS
    while len(ranks) < num_ranks:
        # While the disk is full, nobody can tell how the job is.
        with contextlib.suppress(HerringboneError):
            for line in job.logs():
                if match := re.match(r"ready (\d+) (\d+) (\d+)", line.text):
                    number, pid, child = map(int, match.groups())
                    ranks[number], children[number] = pid, child
        if time.monotonic() > deadline:
            raise TimeoutError(f"only ranks {sorted(ranks)} of {num_ranks} are ready; the job is {job.status}")
        time.sleep(0.05)
    return ranks, children


def check_refusal(fault: Fault, estimator: Estimator) -> list[str]:
    """Return what is wrong with a job that cannot start, or hardly: it may raise, fail, or run if it got enough."""
    try:
        job = estimator.fit(wait=False)
        job.wait(timeout=END_SECONDS)
    except TimeoutError:
        return [f"still {job.status} after {END_SECONDS:g} s"]
    except HerringboneError as error:
        return [] if re.search(fault.expect[1], str(error)) else [f"raised {error!r}"]
    if job.status == "Completed":
        return []
    text = job.failure.render() if job.failure else ""
    return [] if job.status == "Failed" and re.search(fault.expect[1], text) else [f"is {job.status}: {text[:300]!r}"]


def check_end(fault: Fault, job: TrainingJob) -> list[str]:
    """Return what is wrong with the job's end."""
    state, words = fault.expect
    try:
        job.wait(timeout=END_SECONDS)
    except TimeoutError:
        return [f"still {job.status} after {END_SECONDS:g} s"]
    except HerringboneError as error:
        # Nobody can know the job's end, and the error has to say why.
        fits = state == "unknown" and re.search(words, str(error))
        return [] if fits else [f"raised {error!r}, expected {state}"]
    text = job.failure.render() if job.failure else ""
    wrong = []
    if not re.fullmatch(state, job.status):
        wrong.append(f"is {job.status}, expected {state}: {text[:200]}")
    if not re.search(words, text):
        wrong.append(f"no {words!r} in {text[:300]!r}")
    for number, _line in enumerate(job.logs()):
        if number > 100:
            break
    json.dumps(job.describe(), default=str)
    return wrong


def check_rest(home: Path, temporary: Path) -> list[str]:
    """Return what the job left behind."""
    deadline = time.monotonic() + 15
    while (survivors := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in survivors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wrong = [f"left process {pid}: {command[:100]}" for pid, command in survivors.items()]
    rest = [path.name for path in temporary.iterdir() if path.name not in ("train.py", "home", "engine", "slots")]
    return [*wrong, *(f"left {name} in the temporary folder" for name in rest)]


def all_faults() -> list[Fault]:
    return [*signal_faults(), *world_faults(), *surrounding_faults()]


def run_alone(fault: Fault) -> list[str]:
    """Run one fault in a Python, a home and a temporary folder of its own."""
    command = [sys.executable, __file__, "--inside", fault.name]
    with tempfile.TemporaryDirectory(prefix="hbf-", dir="/tmp") as folder:
        environ = {**os.environ, "HERRINGBONE_HOME": f"{folder}/home", "TMPDIR": folder, "HERRINGBONE_STOP_GRACE": "2"}
        environ |= {"HERRINGBONE_HEARTBEAT": "1", "HERRINGBONE_SLOTS": f"{folder}/slots"}
        environ["HERRINGBONE_CPU_SHARES"] = str(SHARES)
        # A mount namespace of its own: the small disk goes with it.
        if fault.prepare is not None:
            command = ["unshare", "--mount", *command]
        try:
            result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired:
            return ["took more than 180 s"]
        finally:
            for pid in processes_of(Path(folder) / "home"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # A control group that still has a dying process stays, empty and without effect.
            with contextlib.suppress(OSError):
                pids_group(Path(folder) / "home").rmdir()
    if result.returncode:
        return [f"raised {result.stderr.strip().splitlines()[-1:]}"]
    wrong: list[str] = json.loads(result.stdout.splitlines()[-1])
    return wrong


def inside(name: str) -> None:
    """Run one fault in this Python; print what is wrong as JSON."""
    (fault,) = [fault for fault in all_faults() if fault.name == name]
    temporary = Path(tempfile.gettempdir())
    home = temporary / "home"
    if fault.prepare is not None:
        fault.prepare(home)
    assert find_home().path == home
    try:
        print(json.dumps(run(fault, home, temporary)))
    finally:
        if fault.restore is not None:
            fault.restore(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a dozen faults instead of all")
    parser.add_argument("--only", default="", help="faults with this text in their names")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.inside)
        return
    faults = [fault for fault in all_faults() if arguments.only in fault.name]
    if arguments.short:
        faults = [fault for fault in faults if fault.name in SHORT]
    start = time.monotonic()
    failed: dict[str, list[str]] = {}
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for fault, wrong in zip(faults, pool.map(run_alone, faults), strict=True):
            print(f"{'FAILED' if wrong else 'ok':8}{fault.name}{': ' if wrong else ''}{'; '.join(wrong)}", flush=True)
            if wrong:
                failed[fault.name] = wrong
    seconds = round(time.monotonic() - start, 1)
    print(
        json.dumps({"faults": len(faults), "passed": len(faults) - len(failed), "failed": failed, "seconds": seconds})
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
