"""A budget, and unused devices, of jobs on machines: no machine knows the whole job, and none needs the client."""

import time

import pytest

from herringbone.plan import budget

pytestmark = pytest.mark.ssh

IDLE = "import time; print('waits', flush=True); time.sleep(600)"
# The first host computes for some seconds more than the limit, and then nobody does.
ONE_BUSY = """
import os, time
end = time.monotonic() + 7
while os.environ["RANK"] == "0" and time.monotonic() < end:
    sum(range(100_000))
time.sleep(600)
"""


def test_a_job_whose_machines_are_all_idle_is_stopped(submit):
    job = submit(IDLE, hosts=3, idle_timeout=3)
    assert job.wait(60).secondary_status == "IdleTimeoutExceeded", job.failure
    assert job.status == "Stopped"
    assert [event["ends"] for event in job.events() if event["kind"] == "idle"] == [False, True]


def test_one_machine_at_work_keeps_the_others(submit):
    begin = time.monotonic()
    job = submit(ONE_BUSY, hosts=2, idle_timeout=4)
    assert job.wait(60).secondary_status == "IdleTimeoutExceeded", job.failure
    assert time.monotonic() - begin > 10


def test_a_budget_ends_without_its_client_and_the_bill_is_told(submit, monkeypatch):
    monkeypatch.setattr(budget, "_LEAST_SECONDS", 1)
    job = submit(IDLE, hosts=2, dollars_per_hour=360, max_cost=0.8)
    # Nobody looks for longer than the budget lasts.
    time.sleep(6)
    assert job.wait(60).secondary_status == "MaxCostExceeded", job.failure
    lines = [line.text for line in job.logs()]
    assert "max_cost of $0.80 is spent ($720.00 an hour): stopping" in lines
    (bill,) = [line for line in lines if line.startswith("bill: ")]
    assert "2 hosts for" in bill
    assert "$720.00 an hour together" in bill
    assert 0.4 < job.describe()["Herringbone"]["Cost"]["Dollars"] < 1.6


FLAKY_ONCE = """
import os, sys, time
if ".2/" not in os.environ["SAGEMAKER_BASE_DIR"]:
    time.sleep(1)
    sys.exit("the link is flaky")
time.sleep(600)
"""


def test_the_time_of_all_attempts_is_told_in_the_users_words(submit):
    # Machines start the second attempt; a client's goes the same way, without `gate`.
    job = submit(FLAKY_ONCE, hosts=3, max_run=12, max_retry_attempts=1, log_policies={"is flaky": "restart"})
    begin = time.monotonic()
    assert job.wait(60).secondary_status == "MaxRuntimeExceeded", job.failure
    # As of the first attempt's begin: the second one has the rest.
    assert time.monotonic() - begin < 17
    lines = [line.text for line in job.logs()]
    assert any(line.startswith("attempt 2 of 2: ") for line in lines)
    assert {line for line in lines if line.startswith("max_run")} == {"max_run of 12 s is over: stopping"}
