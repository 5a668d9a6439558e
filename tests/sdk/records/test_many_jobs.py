"""Jobs leave no descriptor, process, file or memory behind; `tests/campaigns/many_jobs.py` runs more of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_jobs_leave_nothing_behind() -> None:
    campaign = [
        sys.executable,
        "-m",
        "tests.campaigns.many_jobs",
        "--row=4",
        "--at-once=6",
        "--listed=500",
        "--lines=1000",
    ]
    run = subprocess.run(campaign, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.stdout, run.stderr
    # How fast a job is read, a loaded machine does not tell.
    assert set(json.loads(run.stdout.splitlines()[-1])["grown"]) <= {"ls", "logs", "report"}
