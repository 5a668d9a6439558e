"""Tests of retries without a client: its processes and its network are gone while machines fail."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from herringbone import TrainingJob
from herringbone.backends.ssh.attempts.current import current_attempt
from herringbone.backends.ssh.backend import SshBackend
from herringbone.records.index import JobIndex
from herringbone.records.state_lines import StateEvents
from herringbone_contract.failure_text import parse_failure
from tests.waiting import wait_until

from .test_resume import kill_supervisor, train, weights  # noqa: F401 - fixtures

pytestmark = pytest.mark.ssh


@pytest.fixture(scope="module")
def reference():
    return []


@pytest.fixture
def undisturbed(train, reference):  # noqa: F811
    """The weights of a run without faults, once for all tests."""
    if not reference:
        reference.append(weights(train("reference").wait()))
    return reference[0]


def lines(machines, name, attempt):
    """Return the log lines of an attempt on a machine, from its disk: nothing is asked."""
    logs = (machines.work(name) / "jobs" / attempt / "logs").glob("algo-*.log")
    return [line for log in logs for line in log.read_text(errors="replace").splitlines()]


def await_line(machines, attempt, text, *, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not any(text in line for name in machines.names for line in lines(machines, name, attempt)):
        if time.monotonic() > deadline:
            logs = {
                name: path.read_text()[-3_000:]
                for name in machines.names
                for path in machines.work(name).glob("keepers.log")
            }
            raise AssertionError(f"{attempt}: no {text!r}: {logs}")
        time.sleep(0.1)


def await_file(path, pattern, *, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (path.exists() and re.search(pattern, path.read_text(errors="replace"))):
        assert time.monotonic() < deadline, path.read_text() if path.exists() else path
        time.sleep(0.1)


@contextlib.contextmanager
def closed_laptop(machines, job):
    """Take the client's connections and its network away."""
    job._backend._close(job.name)
    machines.cut("client")
    try:
        yield
    finally:
        machines.reconnect("client")


def kill(machines, name, text):
    for pid in machines.pids(name, text):
        os.kill(pid, signal.SIGKILL)


def attempts_on(machines, job):
    """Return (attempt, machine, begin, end, was killed) of each host, by the records of the machines themselves."""
    rows = []
    for name in machines.names:
        for row in JobIndex(machines.work(name) / "index.sqlite").all():
            if row.name.partition(".")[0] == job:
                killed = row.failure is not None and parse_failure(row.failure).host is None
                rows.append((int(row.name.partition(".")[2] or 1), name, row.created, row.ended, killed))
    return sorted(rows)


def assert_one_at_a_time(machines, job):
    rows = attempts_on(machines, job)
    for number, name, begin, *_ in rows:
        # Times are of one clock here: the machines are namespaces of one.
        earlier = [end for other, _, _, end, _ in rows if other < number]
        assert all(end is not None and end <= begin for end in earlier), (number, name, rows)


def test_the_client_comes_back_in_the_middle_and_only_observes(train, machines, undisturbed, home, transport):  # noqa: F811
    job = train("back", holds="0:7 5:12", max_retry_attempts=3, min_instance_count=2, retry_without_client=True)
    await_line(machines, "back", "step 7")
    with closed_laptop(machines, job):
        kill_supervisor(machines, "h-2")
        await_line(machines, "back.2", "step 12")
    # Another process, without the plan's secrets, while the machines go on; and the first one, too.
    other = TrainingJob("back", SshBackend(home, transport))
    assert {other.status, job.status} == {"InProgress"}
    kill_supervisor(machines, "h-3")
    assert other.wait(timeout=90).status == "Completed", other.failure.render()
    assert weights(job) == pytest.approx(undisturbed, abs=1e-6)
    assert_one_at_a_time(machines, "back")
    assert {number for number, *_ in attempts_on(machines, "back")} == {1, 2, 3}
    assert [attempt["Attempt"] for attempt in job.describe()["Attempts"]] == [1, 2]


def test_a_job_that_waits_for_a_machine_is_stopped_by_a_client_that_comes_back(submit, machines, home, transport):
    script = "import time; print('ready', flush=True); time.sleep(600)"
    options = {"environment": {"API_TOKEN": "x"}, "max_retry_attempts": 2, "retry_without_client": True}
    job = submit(script, hosts=2, name="waiting", **options)
    await_line(machines, "waiting", "ready")
    with closed_laptop(machines, job):
        machines.cut("h-2")
        kill_supervisor(machines, "h-1")
        await_file(machines.work("h-1") / "keepers.log", "h-2")
    try:
        # Between two attempts: what the next one needs stays.
        with transport.connect(current_attempt(JobIndex(home.index).get("waiting")).machines["algo-1"]) as connection:
            cleaned = connection.ask({"ask": "clean", "older": 0.0, "client": "other", "dry": False})
        assert not [file for file in cleaned["stale_files"] if file["name"].startswith("waiting")]
        other = TrainingJob("waiting", SshBackend(home, transport))
        assert other.status == "InProgress", (
            other.failure.render(),
            (machines.work("h-1") / "keepers.log").read_text(),
        )
        # Nobody else says why nothing happens.
        wait_until(lambda: other.describe()["SecondaryStatus"] == "Restarting", seconds=20)
        waits = "waiting is over, and the next attempt waits for h-2; `herringbone stop waiting` ends the job"
        assert other.describe()["SecondaryStatusTransitions"][-1]["StatusMessage"] == waits
        assert f"waiting: Restarting: {waits}" in StateEvents().of(JobIndex(home.index).get("waiting"), now=0.0)
        other.stop()
        assert other.wait(timeout=60).status == "Stopped"
    finally:
        machines.reconnect("h-2")
    # The holder comes to the same end, and tells the machine that was away.
    wait_until(lambda: not any(machines.pids(name, "ssh.keepers") for name in machines.names), seconds=40)
    assert {number for number, *_ in attempts_on(machines, "waiting")} == {1}


def test_secrets_are_in_memory_alone_and_a_machine_that_stays_away_is_waited_for(submit, machines):
    script = "import os, time; print(len(os.environ['API_TOKEN']), 'chars', flush=True); time.sleep(600)"
    secret = f"7c1f{os.getpid():012}"
    job = submit(
        script,
        hosts=2,
        name="secrets",
        environment={"API_TOKEN": secret, "NOTE": "a"},
        max_retry_attempts=2,
        retry_without_client=True,
    )
    await_line(machines, "secrets", "16 chars")
    with closed_laptop(machines, job):
        machines.cut("h-2")
        kill_supervisor(machines, "h-1")
        # Two hosts need two machines of the job, and a third one has nothing of it.
        await_file(machines.work("h-1") / "keepers.log", "cannot be had|has no|available|not answer|machines")
        machines.reconnect("h-2")
        await_line(machines, "secrets.2", "16 chars", seconds=90)
    for name in machines.names:
        for path in machines.work(name).rglob("*"):
            if path.is_file() and path.suffix not in (".whl", ".gz", ".so", ".pyc"):
                assert secret.encode() not in path.read_bytes(), path
        for pid in machines.pids(name):
            assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    # The script's own processes have it in their environment; a keeper has not.
    for pid in machines.pids("h-1", "ssh.keepers"):
        assert secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    job.stop()
    assert job.wait(timeout=60).status == "Stopped"


def test_a_killed_keeper_ends_its_ranks_and_votes_no_more(submit, machines):
    job = submit(
        "import time; print('ready', flush=True); time.sleep(600)",
        name="keeperless",
        max_retry_attempts=2,
        retry_without_client=True,
    )
    await_line(machines, "keeperless", "ready")
    with closed_laptop(machines, job):
        for name in ("h-2", "h-3"):
            kill(machines, name, "ssh.keepers")
        # Their permits end, and the attempt with them; the first machine alone decides nothing.
        deadline = time.monotonic() + 40
        while any(machines.pids(name, "herringbone_entry") for name in machines.names):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert {number for number, *_ in attempts_on(machines, "keeperless")} == {1}
    # Without a majority, whoever looks at the job retries it, as ever.
    wait_until(lambda: job.describe().get("Attempts"), seconds=90)
    await_line(machines, "keeperless.2", "ready")
    job.stop()
    assert job.wait(timeout=60).status == "Stopped"


def test_three_faults_with_the_laptop_closed_and_the_first_machine_among_them(train, machines, undisturbed):  # noqa: F811
    job = train("faults", holds="0:7 5:12", max_retry_attempts=3, min_instance_count=2, retry_without_client=True)
    await_line(machines, "faults", "step 7")
    with closed_laptop(machines, job):
        begun = time.monotonic()
        kill_supervisor(machines, "h-2")
        await_line(machines, "faults.2", "from step 5 of 3")
        print(f"a supervisor killed: the next attempt's first line after {time.monotonic() - begun:.1f} s")
        await_line(machines, "faults.2", "step 12")
        begun = time.monotonic()
        machines.cut("h-1")
        try:
            # Its checkpoint of step 10 is cut off with it.
            await_line(machines, "faults.3", "from step 5 of 2")
            print(f"the holder cut off: the next attempt's first line after {time.monotonic() - begun:.1f} s")
            await_line(machines, "faults.3", "step 12")
        finally:
            machines.reconnect("h-1")
        begun = time.monotonic()
        kill(machines, "h-3", "-m herringbone.controller")
        await_line(machines, "faults.4", "from step 10 of ")
        print(f"a controller killed: the next attempt's first line after {time.monotonic() - begun:.1f} s")
        await_line(machines, "faults.4", "step 30")
    assert job.wait(timeout=60).status == "Completed", job.failure.render()
    assert weights(job) == pytest.approx(undisturbed, abs=1e-6)
    assert_one_at_a_time(machines, "faults")
    announcements = [line.text for line in job.logs(host="algo-1") if line.text.startswith("attempt")]
    assert [text.partition(":")[0] for text in announcements] == [f"attempt {n} of 4" for n in (2, 3, 4)]
