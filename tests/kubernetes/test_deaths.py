"""Hosts of a job die, and it goes on without a client; the whole matrix is `tests.campaigns.kubernetes_deaths`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kubernetes.deaths import (
    SCRIPT,
    check_no_step_doubled,
    expected_weight,
    kill_supervisor,
    make_account,
    options,
    steps_of,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def checkpoints(cluster, results) -> Path:
    make_account(cluster, "team-a")
    return results / "checkpoints/Digits-1"


def test_a_lost_host_is_retried_without_a_client(submit, cluster, results, checkpoints) -> None:
    job = submit(SCRIPT, **options())
    wait_until(lambda: len(steps_of(checkpoints, 1)) > 6, 60)
    kill_supervisor(cluster, "algo-2", checkpoints)
    # Nobody looks at the job meanwhile.
    model = results / "jobs/Digits-1/hosts/algo-1/ml/model/weights.json"
    wait_until(model.exists, 90)
    wait_until(lambda: job.status == "Completed", 30)
    assert json.loads(model.read_text())["weight"] == expected_weight()
    check_no_step_doubled(checkpoints)
    (attempt,) = job.describe()["Attempts"]
    print(job.describe(), [f"{line.prefix} {line.text}" for line in job.logs()])
    assert attempt["FailureReason"].startswith("algo-2 on n")
