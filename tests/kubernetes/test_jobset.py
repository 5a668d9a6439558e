"""JobSets on the real cluster, whose controller a stand-in plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from herringbone.backends.kubernetes.api import Cluster as Api
from herringbone_contract.errors import UnsupportedError
from tests.kubernetes.stand_in import StandIn
from tests.kubernetes.test_jobs import lines_of, ours
from tests.waiting import wait_until

pytestmark = pytest.mark.kubernetes
JOB_SET = {"workload": "jobset"}


def test_a_jobset_runs_fails_and_stops(submit: Callable[..., Any], cluster, monkeypatch) -> None:
    stand_in = StandIn(Api.call)
    monkeypatch.setattr(Api, "call", lambda *words, **query: stand_in.answer(*words, **query))
    job = submit("import os\nprint(os.environ['RANK'], flush=True)\n", kubernetes=JOB_SET).wait()
    assert (job.status, lines_of(job)) == ("Completed", ["[algo-1:0] 0", "[algo-2:1] 1"])
    script = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad data')\ntime.sleep(300)\n"
    job = submit(script, kubernetes=JOB_SET, job_name="Digits-2")
    wait_until(lambda: job.status == "Failed", 60)
    assert job.describe()["FailureReason"].startswith("rank 1 on algo-2: ValueError: bad data")
    # The pods of both stay for their logs.
    assert stand_in.deleted == []
    # One that waits would be made again by the controller, unless the whole set goes.
    job = submit("pass\n", kubernetes=JOB_SET, gpus=1, job_name="digits-3")
    wait_until(lambda: "Insufficient nvidia.com/gpu" in str(job.describe()), 30)
    job.stop()
    wait_until(lambda: job.status == "Stopped", 30)
    assert set(stand_in.deleted) == {"hb-digits-3-a1"}
    waiting = [name for name in ours(cluster) if "digits-3" in name and name.startswith("pod")]
    cluster.wait(lambda: not waiting or not [name for name in ours(cluster) if name in waiting], "its pods are gone")
    with pytest.raises(UnsupportedError, match="submitting a trainjob is not in this release yet"):
        submit("pass\n", kubernetes={"workload": "trainjob"}, job_name="digits-4")
