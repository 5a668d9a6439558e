"""A budget that pays for all attempts together, each of which has a controller of its own; and unused devices."""

from __future__ import annotations

import pytest

from herringbone.plan import budget
from herringbone.records.job_events import held_seconds
from tests.slurm.conftest import rank_lines

pytestmark = pytest.mark.slurm

WAITS = "import time; print('up', flush=True); time.sleep(600)"


def test_attempts_share_a_budget(submit, cluster, home, monkeypatch):
    monkeypatch.setattr(budget, "_LEAST_SECONDS", 1)
    # Twenty seconds, of which Slurm's warning leaves ten.
    job = submit(WAITS, job_name="priced", dollars_per_hour=3600, max_cost=20)
    cluster.wait(lambda: "up" in rank_lines(job), 60)
    (number,) = cluster.ask("squeue", "--noheader", "--name=priced", "--Format=JobID").split()
    cluster.ask("scontrol", "requeue", number)
    assert job.wait(timeout=90).secondary_status == "MaxCostExceeded", job.failure
    held = held_seconds(home.job("priced").job_events)
    assert held < 16
    assert job.describe()["Herringbone"]["Cost"]["Dollars"] == pytest.approx(held, abs=0.01)
    lines = [line.text for line in job.logs() if line.rank is None]
    assert any(text.startswith("max_cost of $20.00 is spent ($3,600.00 an hour) in 10 s: stopping") for text in lines)
    # The controller of the first attempt cannot know that an administrator has put the job back.
    bills = [text for text in lines if text.startswith("bill: about $")]
    # The last one is told a moment before or after the end of the time that counts.
    assert [float(text.split("$")[1].split(":")[0]) <= held + 0.5 for text in bills] == [True, True]
    assert rank_lines(job) == ["up", "up"]


def test_an_idle_job_of_a_cluster_is_stopped(submit):
    job = submit(WAITS, idle_timeout=2)
    assert job.wait(timeout=60).secondary_status == "IdleTimeoutExceeded", job.failure
