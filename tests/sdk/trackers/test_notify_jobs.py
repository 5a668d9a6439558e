"""Notices of real jobs, by the detached process of each destination: down, killed, and over a killed controller."""

import json
import os
import signal

import pytest
from tests.sdk.trackers.servers import Hook, served
from tests.waiting import wait_until

from herringbone import Estimator
from herringbone.api.job import TrainingJob
from herringbone.records.index import JobIndex
from herringbone.system.processes import pid_of

WAITS = "import os, time\nwhile not os.path.exists('{go}'): time.sleep(0.01)\n"


@pytest.fixture
def submit(script, backend, tmp_path):
    """Submits a job that waits for the file `go`, and then ends with `code`."""

    def start(code, *destinations):
        script(WAITS.format(go=tmp_path / "go") + code)
        plan = Estimator("train.py", instance_type="local_process", notify=list(destinations)).plan(job_name="a")
        return TrainingJob.submit(plan, backend)

    start.go = (tmp_path / "go").touch
    return start


def described(job):
    return job.describe()["Herringbone"]["Notify"]


def test_a_job_is_told_of_by_a_webhook_and_a_command(submit, tmp_path):
    with served(Hook()) as hook:
        command = {"command": ["sh", "-c", f'echo "$HERRINGBONE_NOTICE_EVENT" >> {tmp_path}/told']}
        job = submit("raise ValueError('boom')", hook.address, command)
        submit.go()
        assert job.wait().status == "Failed"
        wait_until(lambda: [row["State"] for row in described(job)] == ["Done", "Done"])
        assert hook.events == ["failed"]
    assert (tmp_path / "told").read_text() == "failed\n"


def test_a_destination_that_is_down_costs_the_job_nothing_and_gets_word_later(submit, home):
    with served(Hook()) as hook:
        port = hook.server_port
    job = submit("print('done')", f"http://127.0.0.1:{port}/hook")
    submit.go()
    assert job.wait().status == "Completed"
    wait_until(lambda: "Connection refused" in described(job)[0].get("Error", ""))
    assert described(job)[0]["State"] == "Sending"
    # Once in the log, however often it is tried.
    line = f"[algo-1] notify: webhook http://127.0.0.1:{port}/hook: [Errno 111] Connection refused; retrying"
    assert [one.text for one in job.logs() if "notify" in one.text] == [line.partition("] ")[2]]
    with served(Hook(port)) as hook:
        wait_until(lambda: hook.events == ["ended"])
        wait_until(lambda: described(job) == [{"To": str(described(job)[0]["To"]), "State": "Done", "Sent": 1}])


def test_a_killed_controller_is_told_of_as_a_failure(submit, home):
    with served(Hook()) as hook:
        job = submit("", hook.address)
        wait_until(lambda: JobIndex(home.index).get("a").started)
        os.kill(pid_of(JobIndex(home.index).get("a").controller), signal.SIGKILL)
        wait_until(lambda: hook.events == ["failed"])
        assert job.status == "Failed"


def test_a_killed_notifier_is_gone_on_with_by_hand_and_sends_nothing_twice(submit, home, herringbone):
    with served(Hook()) as hook:
        job = submit("", hook.address)
        (state,) = home.job("a").exports.glob("notify-*.json")
        wait_until(lambda: json.loads(state.read_text()).get("process"))
        os.kill(pid_of(json.loads(state.read_text())["process"]), signal.SIGKILL)
        wait_until(lambda: described(job)[0]["State"] == "Interrupted")
        assert described(job)[0]["Error"].endswith("`herringbone notify a` goes on where it ended")
        submit.go()
        job.wait()
        for sent in (1, 0):
            code, out, _ = herringbone("notify", "a")
            assert (code, out) == (0, f"job a: {sent} sent to webhook {hook.address}\n")
        assert hook.events == ["ended"]


def test_destinations_are_tried_before_a_weekend(home, herringbone, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    with served(Hook()) as hook, served(Hook(0, 403)) as closed:
        (tmp_path / "work" / "tell").write_text("#!/bin/sh\ntouch told\n")
        (tmp_path / "work" / "tell").chmod(0o755)
        lines = ["entry_point: train.py", "notify:", f"  - {hook.address}", f"  - webhook: {closed.address}"]
        (tmp_path / "work" / "job.yaml").write_text("\n".join([*lines, "  - command: [./tell]", ""]))
        code, out, err = herringbone("notify", str(tmp_path / "work" / "job.yaml"))
        assert hook.events == ["test"]
    assert code == 1
    assert out == f"a test was sent to webhook {hook.address}\na test was sent to command ./tell\n"
    assert f"webhook {closed.address}: it answers 403 Forbidden" in err
    assert (tmp_path / "work" / "told").exists()


def test_a_job_without_destinations_says_so(submit, herringbone):
    job = submit("")
    submit.go()
    job.wait()
    for words in (["a"], ["a", "--test"]):
        code, _, err = herringbone("notify", *words)
        assert (code, "has no option notify, so nobody gets word of it" in err) == (2, True)
