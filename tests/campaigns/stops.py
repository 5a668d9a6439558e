"""Stop training loops at random moments, also in imports, evaluations and saves; go on, and compare the weights.

Usage: `.venv/bin/python -m tests.campaigns.stops [--loops trainer,lightning,...] [--stops 20] [--seed 1]` from the root
of the repository; the loops and their Pythons are those of `loop_faults`. Each stop asks a job of `local_process` to go
at a random moment; a second job with the same folder of checkpoints goes on. Right is:

    a job whose ranks ask when to stop     it has saved a checkpoint within the grace
    every job                              Stopped, by exit code 143 of its hosts, or Completed before the stop came
    after the second one                   steps, samples, losses and weights are equal in bits to those of a whole run

The last line is JSON: of each loop the stops, how many found ranks that ask, how many came behind the last step, the
longest seconds from the notice to the end, and what is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.campaigns.loop_faults import LOOPS, ROOT, Loop, Run, judge, lines, told

STOPPING = {
    **LOOPS,
    "plain": Loop(".venv", "plain_loop.py", "torch_distributed", {}, epochs=1),
}
CHOSEN = ("trainer", "lightning", "keras", "smp", "plain", "mxnet")
_STEP_SECONDS, _SECONDS = 0.1, 180


def events(home: Path, name: str) -> list[dict[str, Any]]:
    files = (home / "jobs" / name / "logs").glob("*.events")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run(loop: Loop, base: Path, part: str, folder: Path) -> Run:
    log = base / part
    # MXNet's random numbers are seeded at each checkpoint, so one more checkpoint changes what follows.
    dropout = 0.0 if loop.kind == "MXNet" else 0.3
    return Run(loop, folder, log, "", dropout, _STEP_SECONDS)


def stopped(job: Run, home: Path, step: int, moment: float) -> dict[str, Any]:
    """Ask a job to go, so many seconds after a step; return its status, and the members of its `stop` event."""
    os.environ["HERRINGBONE_HOME"] = str(home)
    from herringbone import attach
    from herringbone_contract.errors import JobNotFoundError, UnsupportedError

    while job.process.poll() is None and len(lines(job.log, 0)) <= step:
        time.sleep(0.005)
    time.sleep(moment)
    while True:
        try:
            attach(job.name).stop()
            break
        except (JobNotFoundError, UnsupportedError):
            # Not submitted yet, so that SageMaker might have it.
            time.sleep(0.02)
    job.process.communicate(timeout=_SECONDS)
    stop = next((event for event in events(home, job.name) if event["kind"] == "stop"), {})
    return {"status": attach(job.name).status, **stop}


def tried(loop: Loop, base: Path, number: int, when: tuple[int, float], whole: Any) -> dict[str, Any]:
    """Stop one training and let it go on; return what was found, with what is wrong."""
    folder = base / f"{number}-checkpoints"
    found = stopped(run(loop, base, f"{number}-before", folder), base / "home", *when)
    before, after = base / f"{number}-before", base / f"{number}-after"
    # The notice came behind its last step.
    is_over = any(line[0] == "end" for line in lines(before, 0))
    if found["status"] not in ("Stopped", "Completed"):
        return {**found, "wrong": f"it is {found['status']}"}
    if not is_over:
        run(loop, base, after.name, folder).end()
        last, first = ([line[0] for line in lines(log, 0) if isinstance(line[0], int)] for log in (before, after))
        # The step may have been saved in the moment before the notice.
        if found.get("call") and first[:1] > [last[-1] + 1]:
            return {**found, "wrong": f"steps are lost: {last[-1]}, then {first[0]}"}
        if found.get("call") and first and first[0] <= last[-1]:
            return {**found, "wrong": f"steps were made again: {last[-1]}, then {first[0]}"}
    wrong = judge(loop, "stop", whole, told(before) if is_over else told(after, before))
    found["over"] = is_over
    return {**found, "wrong": wrong}


def campaign(names: list[str], stops: int, seed: int) -> dict[str, Any]:
    """Return the figures of each loop."""
    results: dict[str, Any] = {}
    for name in names:
        loop, numbers = STOPPING[name], random.Random(f"{seed}-{name}")
        if not (ROOT / loop.python / "bin" / "python").exists():
            print(f"{name}: skipped, there is no {loop.python}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="hb-stops-") as temporary:
            base, begin = Path(temporary), time.monotonic()
            run(loop, base, "whole", base / "whole-checkpoints").end()
            seconds, whole = time.monotonic() - begin, told(base / "whole")
            row: dict[str, Any] = {"stops": 0, "asked": 0, "over": 0, "longest": 0.0, "wrong": []}
            for number in range(stops):
                # One of four comes before the first step, most of them in imports; -1: since the submission.
                step = -1 if number % 4 == 3 else numbers.randrange(1 + len(whole[0]))
                when = step, numbers.uniform(0.3, seconds / 2) if step < 0 else numbers.uniform(0, 2 * _STEP_SECONDS)
                try:
                    found = tried(loop, base, number, when, whole)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    found = {"status": "", "wrong": str(error)}
                row["stops"] += 1
                row["asked"] += bool(found.get("call"))
                row["over"] += found.get("over", False)
                row["longest"] = max(row["longest"], found.get("seconds", 0.0))
                if found["wrong"]:
                    row["wrong"].append(f"stop {number}, {when[1]:.2f} s after step {when[0]}: {found['wrong']}")
                shown = {key: found.get(key) for key in ("status", "call", "saved", "seconds")}
                print(f"{name} {number} {when}: {found['wrong'] or shown}", file=sys.stderr, flush=True)
            results[name] = row
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--loops", default=",".join(CHOSEN))
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    results = campaign(arguments.loops.split(","), arguments.stops, arguments.seed)
    print(json.dumps(results))
    return any(row["wrong"] for row in results.values())


if __name__ == "__main__":
    sys.exit(main())
