"""The permit of a machine that may be cut off from its job: ranks end with it, whatever else happens."""

import time

import pytest
from tests.waiting import wait_until

from herringbone import Estimator, TrainingJob
from herringbone.backends.process.backend import ProcessBackend
from herringbone.controller.permit import Permit, write_permit

SLEEPS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_permit_ends_once_when_no_later_one_was_written(tmp_path):
    path, now = str(tmp_path / "permit"), [100.0]
    write_permit(path, 105.0)
    permit = Permit({"path": path, "seconds": 60.0}, clock=lambda: now[0])
    assert not permit.ends()
    assert permit.due == pytest.approx(time.monotonic() + 5.0, abs=1.0)
    write_permit(path, 110.0)
    answers = []
    for now[0] in (104.9, 105.0, 109.9, 110.0, 111.0):
        answers.append(permit.ends())
    assert (answers, permit.due) == ([False, False, False, True, False], float("inf"))


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_damaged_permit_permits_no_more_than_none(tmp_path, content):
    path, now = tmp_path / "permit", [100.0]
    if content is not None:
        path.write_bytes(content)
    permit = Permit({"path": str(path), "seconds": 7.0}, clock=lambda: now[0])
    answers = []
    for now[0] in (106.9, 107.0):
        answers.append(permit.ends())
    assert answers == [False, True]


def test_the_controller_ends_ranks_without_a_grace_and_the_host_counts_as_lost(script, stand_in, home, running):
    class Cut(ProcessBackend):
        def _config(self, plan, run_folder):
            path = home.job(plan.job_name).path / "permit"
            return {**super()._config(plan, run_folder), "permit": {"path": str(path), "seconds": 1.0}}

    script(SLEEPS)
    backend = Cut(home, stand_in)
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(None, "cut"), backend)
    begun = time.monotonic()
    assert job.wait(timeout=20).status == "Failed"
    assert 0.9 < time.monotonic() - begun < 6
    assert job.failure.host is None
    assert "the machine was cut off from the others of its job for too long" in job.failure.message
    wait_until(lambda: not running())
