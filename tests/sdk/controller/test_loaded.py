"""A controller loads all that it needs at the start: the package may be upgraded or removed while its job runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.backends.process.backend import ProcessBackend
from herringbone.records.home import Home

# A controller that notes what it imports after it has loaded what its end needs.
NOTES_MODULES = """
import json, os, sys
from pathlib import Path
from herringbone.controller import __main__ as program, controller
late = []
load = controller.load_modules
def load_and_note():
    load()
    sys.addaudithook(lambda event, names: late.append(names[0]) if event == "import" else None)
controller.load_modules = load_and_note
leave = os._exit
def write(code):
    Path("late.json").write_text(json.dumps(late))
    leave(code)
os._exit = write
program.main()
"""
# Two hosts write one file each of the same name, with other content; the second attempt begins after a killed rank.
SUCCEEDS = """
import os, time
time.sleep(1.5)
open(os.environ["SM_MODEL_DIR"] + "/w", "w").write(os.environ["SM_CURRENT_HOST"])
"""
FAILS = "import time\ntime.sleep(1.5)\n1 / 0\n"
HANGS = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    ("code", "options", "status"),
    [
        (SUCCEEDS, {"instance_count": 2}, "Completed"),
        (FAILS, {"max_retry_attempts": 1, "log_policies": {"ZeroDivisionError": "restart"}}, "Failed"),
        (HANGS, {"max_run": 2}, "Stopped"),
    ],
)
def test_nothing_is_imported_later(
    script, home: Home, stand_in, code: str, options: dict[str, object], status: str
) -> None:
    script(code)
    backend = ProcessBackend(home, stand_in, controller=(sys.executable, "-c", NOTES_MODULES))
    plan = Estimator("train.py", instance_type="local_process", **options).plan(job_name="a")
    job = TrainingJob.submit(plan, backend).wait(timeout=30)
    assert job.status == status
    # `sys.modules` is asked first, so an import statement of a loaded module is no event.
    assert json.loads(Path(home.job("a").path, "late.json").read_text()) == []


def test_whoever_waits_for_a_job_has_loaded_what_its_failure_needs():
    """An upgrade during the wait ended `herringbone run` of a failed job in a traceback of the client's."""
    code = "import sys, herringbone.api.follow\nsys.exit('herringbone.records.remedies' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
