"""Six planted hangs in one job on this machine: the log names the rank that the others wait for, and its line."""

import json
import re
import time

import pytest

from herringbone import Estimator, attach
from tests.hangs.planted import LINES, SCRIPT

pytestmark = pytest.mark.e2e

HANG_TIMEOUT = 1
# The limit for a name in the log.
ALLOWED_SECONDS = HANG_TIMEOUT + 5.0
STRAGGLER = (
    r"straggler: rank 1 \(algo-2\) needs 0\.2 s for a step, 2\.00 times the median of all ranks, 0\.1 s, over 20 steps"
)


def wait_for_line(job, pattern, since, seconds=30.0):
    """Return the first line of the first host's log that matches, of those written since a time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in job.logs(host="algo-1", pattern=pattern):
            if line.time.timestamp() >= since:
                return line
        time.sleep(0.1)
    raise AssertionError("\n".join(line.text for line in job.logs()))


@pytest.mark.timeout(110)
def test_each_planted_hang_is_named_in_time(tmp_path, monkeypatch, herringbone):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    estimator = Estimator(
        "train.py",
        source_dir=str(tmp_path / "code"),
        instance_type="local_process",
        instance_count=3,
        distribution={"torch_distributed": {"enabled": True}},
        hang_timeout=HANG_TIMEOUT,
        environment={"SHARED": str(shared)},
    )
    estimator.fit(wait=False)
    job = estimator.latest_training_job
    try:
        for name, pattern in LINES.items():
            planted = wait_for_line(job, f"^planted {name}$", 0.0).time.timestamp()
            line = wait_for_line(
                job, rf"^hang: no line, metric or collective of any rank for \d+ s: {pattern}$", planted
            )
            assert line.time.timestamp() - planted <= ALLOWED_SECONDS
            if name == "lock":
                code, out, _ = herringbone("stacks", job.name, "--json")
                [odd, others] = json.loads(out)["groups"]
                assert (code, odd["ranks"], odd["odd"], others["ranks"]) == (0, [1], True, [0, 2])
                assert re.fullmatch(r"train\.py:\d+ in lock: own\.acquire\(\)", odd["frames"][0])
            (shared / name).touch()
        wait_for_line(job, rf"^{STRAGGLER}$", 0.0)
        kinds = [event["kind"] for event in attach(job.name).events()]
        assert {"hang", "stacks", "straggler"} <= set(kinds)
    finally:
        job.stop(grace=0.1)
        job.wait()
