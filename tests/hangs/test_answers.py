"""The short form of `tests/campaigns/hangs.py`: a hang costs one restart, and long work costs none."""

import json

import pytest

from herringbone import Estimator
from tests.campaigns.hangs import LIMIT, WEIGHTS, run
from tests.hangs.faults import SCRIPT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(110)]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)


@pytest.mark.parametrize("fault", ["lock", "saves"])
def test_a_hang_is_cured_and_work_is_left_alone(fault):
    assert run({"instance_type": "local_process"}, fault)[0] == ""


def test_without_attempts_a_hang_is_the_failure_of_the_odd_rank(herringbone):
    job = Estimator(
        "train.py",
        instance_type="local_process",
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        hang_timeout=LIMIT,
        environment={"FAULT": "skipped", "LASTS": "0", "FREEZER": "", "OMP_NUM_THREADS": "1"},
    ).fit(logs=False, wait=False)
    assert job.wait().status == "Failed"
    assert (job.failure.host, job.failure.rank, job.failure.fault) == ("algo-2", 1, "hang")
    code, out, _ = herringbone("describe", job.name, "--json")
    assert (code, WEIGHTS in out) == (0, False)
    assert "hang: no line, metric or collective" in json.loads(out)["FailureReason"]
