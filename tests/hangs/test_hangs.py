"""Six planted hangs, one after the other in one job: the log names the rank that the others wait for, and its line."""

import json
import re
import time

import pytest

from herringbone import Estimator
from tests.hangs.planted import LINES, SCRIPT

HANG_TIMEOUT = 1
# The longest time between a hang and its name in the log.
ALLOWED_SECONDS = HANG_TIMEOUT + 7.0
STRAGGLER = (
    r"straggler: rank 1 \(algo-2\) needs 0\.2 s for a step, 2\.00 times the median of all ranks, 0\.1 s, over .*"
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts the script on three hosts with some of its hangs; returns the job and the folder that ends a hang."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    shared, code = tmp_path / "shared", tmp_path / "code"
    shared.mkdir()
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    jobs = []

    def start(hangs, *, seen_as=None, **options):
        estimator = Estimator(
            "train.py",
            source_dir=str(code),
            instance_count=3,
            distribution={"torch_distributed": {"enabled": True}},
            hang_timeout=HANG_TIMEOUT,
            fault_policies={"hang": "report"},
            environment={"SHARED": seen_as or str(shared), "HANGS": ",".join(hangs)},
            checkpoint_s3_uri=shared.as_uri(),
            **options,
        )
        estimator.fit(wait=False)
        jobs.append(estimator.latest_training_job)
        return jobs[-1], shared

    yield start
    for job in jobs:
        job.stop(grace=0.1)
        job.wait()


def wait_for_line(job, pattern, since=0.0, seconds=30.0):
    """Return the time of the first line of the first host's log that matches and was written at or after `since`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in job.logs(host="algo-1", pattern=f"^{pattern}$"):
            if line.time.timestamp() >= since:
                return line.time.timestamp()
        time.sleep(0.1)
    raise AssertionError("\n".join(line.text for line in job.logs()))


def check_name(job, hang):
    planted = wait_for_line(job, f"planted {hang}")
    named = wait_for_line(job, rf"hang: no line, metric or collective of any rank for \d+ s: {LINES[hang]}", planted)
    assert named - planted <= ALLOWED_SECONDS, hang


@pytest.mark.e2e
@pytest.mark.timeout(110)
def test_each_planted_hang_is_named_in_time(start, herringbone):
    job, shared = start(LINES, instance_type="local_process")
    for hang in LINES:
        check_name(job, hang)
        if hang == "lock":
            code, out, _ = herringbone("stacks", job.name, "--json")
            [odd, others] = json.loads(out)["groups"]
            assert (code, odd["ranks"], odd["odd"], others["ranks"]) == (0, [1], True, [0, 2])
            assert re.fullmatch(r"train\.py:\d+ in lock: own\.acquire\(\)", odd["frames"][0])
        (shared / hang).touch()
    wait_for_line(job, STRAGGLER)
    assert {"hang", "stacks", "straggler"} <= {event["kind"] for event in job.events()}


@pytest.mark.docker
@pytest.mark.timeout(110)
def test_hangs_are_named_in_containers(start, image):
    # A container may not attach a packet filter, so the cut network is planted on the machine itself alone.
    hangs = [hang for hang in LINES if hang != "cut"]
    job, shared = start(hangs, instance_type="local", image_uri=image, seen_as="/opt/ml/checkpoints")
    for hang in hangs:
        check_name(job, hang)
        (shared / hang).touch()
