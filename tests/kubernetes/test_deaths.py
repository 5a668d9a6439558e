"""Hosts of a job die, and it goes on without a client; the whole matrix is `tests.campaigns.kubernetes_deaths`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import msgspec
import pytest

from herringbone.backends.kubernetes.api import Cluster as Api
from herringbone.backends.kubernetes.ledger import change
from herringbone.backends.kubernetes.names import ObjectNames
from tests.kubernetes.deaths import (
    SCRIPT,
    Victim,
    check_no_step_doubled,
    delete_controller,
    delete_pod,
    expected_weight,
    kill_supervisor,
    make_account,
    options,
    steps_of,
)
from tests.kubernetes.test_jobs import ours
from tests.waiting import wait_until

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def checkpoints(cluster, results) -> Path:
    make_account(cluster, "team-a")
    return results / "checkpoints/Digits-1"


def test_a_lost_host_is_retried_without_a_client(submit, cluster, results, checkpoints) -> None:
    job = submit(SCRIPT, **options())
    wait_until(lambda: len(steps_of(checkpoints, 1)) > 6, 60)
    kill_supervisor(Victim(cluster, "Digits-1", "algo-2", checkpoints))
    # Nobody looks at the job meanwhile.
    model = results / "jobs/Digits-1/hosts/algo-1/ml/model/weights.json"
    wait_until(model.exists, 90)
    wait_until(lambda: job.status == "Completed", 30)
    assert json.loads(model.read_text())["weight"] == expected_weight()
    check_no_step_doubled(checkpoints)
    # The record of the attempt that failed would be that of the next one, too.
    assert not list(results.rglob("failure*"))
    (attempt,) = job.describe()["Attempts"]
    assert attempt["FailureReason"].startswith("algo-2 on n")
    text = "\n".join(line.text for line in job.logs())
    # The controller's own line is between those of two attempts.
    assert re.search(r"from step 0\n(?s:.*)attempt 2 of 4: algo-2 on n.* was lost(?s:.*)from step [1-9]", text)
    states = [event["state"] for event in job.events() if event["kind"] == "state"]
    assert "Restarting" in states
    assert {name.partition("/")[0] for name in ours(cluster)} == {"pod", "job.batch", "configmap"}
    job.remove()
    cluster.wait(lambda: not ours(cluster), "the job's objects are gone")


def test_a_deleted_pod_is_a_lost_host_and_a_stop_ends_the_job_without_a_client(submit, cluster, checkpoints) -> None:
    job = submit(SCRIPT, **options(environment={"STEP_SECONDS": "2"}))
    wait_until(lambda: len(steps_of(checkpoints, 1)) > 1, 60)
    delete_controller(Victim(cluster, "Digits-1", "algo-2", checkpoints))
    delete_pod(Victim(cluster, "Digits-1", "algo-2", checkpoints))
    wait_until(lambda: steps_of(checkpoints, 1)[-1][0] == 2, 90)
    (attempt,) = job.describe()["Attempts"]
    assert "its pod was deleted" in attempt["FailureReason"]
    # As a client does that ends at once.
    stopped = partial(msgspec.structs.replace, stop=3.0)
    change(Api(None), "team-a", ObjectNames("Digits-1").job, stopped)
    wait_until(lambda: not any(map(cluster.processes, ("n1", "n2"))), 60)
    assert job.status == "Stopped"
    check_no_step_doubled(checkpoints)
