"""Jobs that are stopped by their budget, and because they use nothing, under a real supervisor."""

from __future__ import annotations

import json
import re

import pytest

from herringbone import Estimator
from herringbone.plan import budget

SAVES = """
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_CHECKPOINT_DIR"] + "/last.pt", "w").write("x")
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open({begun!r}, "w")
while True:
    {wait}
"""


@pytest.fixture
def stopped(home, script, tmp_path, herringbone):
    """Runs a job that never ends by itself; returns the job and its lines of the first host."""

    def run(wait, **options):
        script(SAVES.format(begun=str(tmp_path / "begun"), wait=wait))
        job = Estimator("train.py", instance_type="local_process", **options).fit(wait=False, job_name="a")
        job.wait(60)
        assert (home.job("a").checkpoints("algo-1") / "last.pt").exists()
        return job, [line.text for line in job.logs()]

    return run


def test_a_job_that_uses_nothing_is_told_of_and_then_stopped(stopped):
    job, lines = stopped("time.sleep(0.1)", idle_timeout=2)
    assert (job.status, job.secondary_status) == ("Stopped", "IdleTimeoutExceeded")
    assert any(line.startswith("idle: none of its processors has been used for 1 s") for line in lines)
    assert any(line.endswith("and idle_timeout is 2 s") for line in lines)
    assert "stopping: so says the policy of idle" in lines
    assert "saved" in lines
    idles = [event for event in job.events() if event["kind"] == "idle"]
    assert [event["ends"] for event in idles] == [False, True]
    assert [event["why"] for event in job.events() if event["kind"] == "state"][-1].startswith(
        "its devices were not used"
    )


def test_a_job_that_computes_is_left_alone_until_its_budget_is_spent(stopped, monkeypatch, herringbone):
    monkeypatch.setattr(budget, "_LEAST_SECONDS", 1)
    # Five seconds, which is more than twice the limit of idleness.
    job, lines = stopped("sum(range(100_000))", idle_timeout=2, dollars_per_hour=36, max_cost=0.05)
    assert (job.status, job.secondary_status) == ("Stopped", "MaxCostExceeded")
    assert "max_cost of $0.05 is spent ($36.00 an hour): stopping" in lines
    assert "saved" in lines
    (bill,) = [line for line in lines if line.startswith("bill: ")]
    # The controller counts from its own start on, a moment before the hosts begin to train.
    assert re.fullmatch(r"bill: about \$0\.0\d+: 1 host for \d\.\d s, \$36\.00 an hour", bill)
    assert job.bill.partition(": ")[2] == bill.removeprefix("bill: ")
    cost = job.describe()["Herringbone"]["Cost"]
    assert (cost["DollarsPerHour"], cost["MaxDollars"]) == (36.0, 0.05)
    assert 0.03 < cost["Dollars"] < 0.07
    assert [event["text"] for event in job.events() if event["kind"] == "bill"] == [bill.removeprefix("bill: ")]
    assert json.loads(herringbone("ls", "--cost", "--json")[1])[0]["CostInDollars"] == cost["Dollars"]
    assert herringbone("ls", "--cost")[1].splitlines()[0].split()[-1] == "DOLLARS"


def test_an_idle_job_is_only_told_of_where_its_policy_says_so(home, script):
    script("import time\ntime.sleep(5)\n")
    policies = {"idle": "report"}
    job = Estimator("train.py", instance_type="local_process", idle_timeout=2, fault_policies=policies).fit(wait=False)
    assert job.wait(60).status == "Completed"
    assert [event["ends"] for event in job.events() if event["kind"] == "idle"] == [False, True]
