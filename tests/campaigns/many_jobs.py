"""Run many jobs, one after the other and all at once, and show what they leave behind; read a large one.

Usage: python -m tests.campaigns.many_jobs [--row 100] [--at-once 50] [--listed 5000] [--lines 1000000]

The last line is JSON: descriptors, threads, child processes, processes of jobs, temporary files and memory of this
Python after the first jobs and after the last, the seconds of `herringbone ls` with many finished jobs, and those of
`logs` and `report` of a job with many lines and values. The exit code is 1 when something is not back where it was, or
slower than its limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SCRIPT = "import os\nopen(os.environ['SM_MODEL_DIR'] + '/w', 'w').write('1')\nprint('done')\n"
# Memory may grow by caches and by the allocator's own fragments; a leak of one object a job stays below that.
MOST_MEGABYTES = 8.0
# The best of five runs each, on an idle machine.
MOST_SECONDS = {"ls": 0.3, "logs": 5.0, "report": 1.5}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--row", type=int, default=100, help="jobs one after the other (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=50, help="jobs at the same time (default: %(default)s)")
    parser.add_argument("--listed", type=int, default=5000, help="jobs in the index of `ls` (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=10**6, help="lines and values of one job (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hb-campaign-") as folder:
        os.environ["HERRINGBONE_HOME"] = str(Path(folder, "home"))
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(folder, "tmp"))
        Path(folder, "tmp").mkdir()
        os.chdir(folder)
        Path("train.py").write_text(SCRIPT)
        return report(arguments, Path(folder))


def report(arguments: argparse.Namespace, folder: Path) -> int:
    # The first jobs fill the caches.
    in_a_row(5)
    before = facts(folder)
    begin = time.monotonic()
    in_a_row(arguments.row)
    row = facts(folder) | {"seconds": round(time.monotonic() - begin, 1)}
    begin = time.monotonic()
    at_once(arguments.at_once)
    both = facts(folder) | {"seconds": round(time.monotonic() - begin, 1)}
    list_jobs(arguments.listed)
    seconds = {"ls": times("ls"), **large_job(arguments.lines)}
    results = {"before": before, "row": row, "at_once": both, "seconds": seconds}
    grown = [name for name in before if name != "megabytes" and both[name] > before[name]]
    if both["megabytes"] - before["megabytes"] > MOST_MEGABYTES:
        grown.append("megabytes")
    grown += [name for name, most in MOST_SECONDS.items() if min(seconds[name]) > most]
    print(json.dumps({**results, "jobs": arguments.row + arguments.at_once, "grown": grown}))
    return int(bool(grown))


def in_a_row(count: int) -> None:
    from herringbone import Estimator

    for _ in range(count):
        job = Estimator("train.py", instance_type="local_process").fit(logs=False)
        assert job.status == "Completed", job.describe()


def at_once(count: int) -> None:
    from herringbone import Estimator

    jobs = [Estimator("train.py", instance_type="local_process").fit(wait=False) for _ in range(count)]
    for job in jobs:
        assert job.wait(timeout=300).status == "Completed", job.describe()


def facts(folder: Path) -> dict[str, float]:
    """Return what this Python and its jobs hold now, once the last controllers have ended."""
    gc.collect()
    deadline = time.monotonic() + 10
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "processes": len(processes_of(folder)),
        "temporary_files": len(os.listdir(folder / "tmp")),
        "megabytes": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
    }


def processes_of(folder: Path) -> list[int]:
    """Return the processes that have the campaign's folder in their environment, without this one."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.fsencode(folder) in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def list_jobs(count: int) -> None:
    """Add rows of finished jobs to the index until it has so many."""
    import dataclasses

    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex

    index = JobIndex(find_home().index)
    done = index.all()
    template = done[0]
    with index._open() as database:
        columns = [field.name for field in dataclasses.fields(template)]
        marks = ", ".join("?" * len(columns))
        rows = [
            [f"job-{number}" if name == "name" else getattr(template, name) for name in columns]
            for number in range(count - len(done))
        ]
        database.executemany(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608
    assert len(index.all()) == count


def large_job(lines: int) -> dict[str, list[float]]:
    """Make a job with so many lines, each at a time of its own, and as many values; read both."""
    from herringbone.records.home import find_home
    from tests.page.make_jobs import make_long, write_log

    home, now = find_home(), time.time()
    make_long(home, lines, now)
    name = "long-100"
    begin = now - lines
    write_log(
        home.job(name), "algo-1", ((begin + step, 0, f"step {step} loss {step / 7:.6f}") for step in range(lines))
    )
    return {"logs": times("logs", name), "report": times("report", name)}


def times(*arguments: str) -> list[float]:
    """Return the seconds of five runs of a command of `herringbone`."""
    seconds = []
    for _ in range(5):
        begin = time.monotonic()
        command = [sys.executable, "-m", "herringbone.cli", *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds.append(round(time.monotonic() - begin, 3))
    return seconds


if __name__ == "__main__":
    sys.exit(main())
