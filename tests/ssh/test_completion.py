"""The end of a job on this machine, without any machine: who may end the packing, and when."""

import time
from types import SimpleNamespace

import pytest

from herringbone.backends.ssh.attempts.current import CurrentAttempt
from herringbone.backends.ssh.attempts.job_state import HostState
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.finish import retry
from herringbone.backends.ssh.finish.completion import packing_is_ended
from herringbone.backends.ssh.finish.observed import ObservedHosts
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.controller.retry import Attempt
from herringbone.plan.options.typed import Options
from herringbone.records.index import STOPPING, TRAINING, UPLOADING, JobIndex, JobRecord
from herringbone.records.state_lines import last_message


@pytest.fixture
def index(home):
    home.make()
    index = JobIndex(home.index)
    index.add(
        JobRecord(
            name="a",
            backend="ssh",
            plan="{}",
            created=time.time(),
            secondary_status=UPLOADING,
            service='{"machines": {}}',
        )
    )
    return index


def test_the_second_request_to_stop_ends_the_packing_in_whichever_process_it_runs(home, index):
    backend = SshBackend(home, transport=None)
    backend.stop("a")
    row = index.get("a")
    assert (row.status, row.secondary_status, packing_is_ended(row)) == (STOPPING, UPLOADING, False)
    backend.stop("a")
    assert packing_is_ended(index.get("a"))


def test_a_kill_ends_the_packing(home, index):
    backend = SshBackend(home, transport=None, kill_seconds=0.0)
    # Nobody packs in this test, so the job stays as it is.
    backend.describe = index.get
    backend.kill("a")
    assert packing_is_ended(index.get("a"))


@pytest.mark.parametrize(
    ("alive", "ended", "waits"),
    [
        # Of two machines, the second alone may not decide.
        ("b", 0.0, "a, without which the other machines may not decide"),
        ("a", 40.0, ""),
        ("a", 50.0, "b"),
        ("ab", 50.0, ""),
    ],
)
def test_a_client_says_for_which_machines_an_attempt_waits(home, index, alive, ended, waits):
    members = {name: Machine(name=name) for name in "ab"}
    attempt = CurrentAttempt(machines={"algo-1": members["a"], "algo-2": members["b"]}, name="a", members=members)
    index.update("a", service=attempt.to_json())
    states = [HostState("algo-2", "b", {"status": "Failed", "ended": time.time() - ended})]
    plan = SimpleNamespace(options=Options(), hourly_cost=None)
    hosts = ObservedHosts(index.get("a"), plan, states, None, home, None)
    for _ in range(2):
        hosts._tell_wait({name: {"alive": True} for name in alive}, 45.0)
    row = index.get("a")
    text = f"a is over, and the next attempt waits for {waits}; `herringbone stop a` ends the job"
    assert last_message(row) == (text if waits else "")
    assert row.secondary_status == ("Restarting" if waits else UPLOADING)


@pytest.mark.parametrize(
    ("limit", "asks", "left", "stopping", "asked"),
    [
        ("max_run", False, 30, "", []),
        # The clocks of the machines end the attempt, which then says which limit it was.
        ("max_run", False, 0.5, "MaxRuntimeExceeded", []),
        ("max_cost", False, 0.5, "MaxCostExceeded", []),
        ("max_run", True, 30, "Stopped", ["stop"]),
        ("max_run", True, 0.5, "Stopped", ["stop"]),
    ],
)
def test_an_attempt_that_began_too_late_is_ended_as_what_it_is(
    home, index, monkeypatch, limit, asks, left, stopping, asked
):
    requests = []
    monkeypatch.setattr(retry, "ask_each", lambda _, machines, request: requests.append(request["ask"]))
    machines = {"algo-1": Machine(name="m")}
    index.update(
        "a",
        started=time.time() - 100 + left,
        service=CurrentAttempt(machines=machines, name="a").to_json(),
        **({"status": STOPPING, "secondary_status": STOPPING} if asks else {}),
    )
    home.job("a").logs.mkdir(parents=True)
    host, options = SimpleNamespace(name="algo-1"), Options()
    plan = SimpleNamespace(options=options, hourly_cost=None, hosts=[host], time_limit=100, limiting_option=limit)
    hosts = retry.RestartableHosts(index.get("a"), plan, [HostState("algo-1", "m")], None, home, None)
    assert hosts.stopping == stopping
    hosts._record_attempt(Attempt(1, {"algo-1": "m"}, "algo-1 on m was lost"), machines)
    assert requests == asked
    assert index.get("a").secondary_status == (STOPPING if asks else TRAINING)
