"""The end of a job on this machine, without any machine: who may end the packing, and when."""

import time
from types import SimpleNamespace

import pytest

from herringbone.backends.ssh.attempts.current import CurrentAttempt
from herringbone.backends.ssh.attempts.job_state import HostState
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.finish.completion import packing_is_ended
from herringbone.backends.ssh.finish.observed import ObservedHosts
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.plan.options.typed import Options
from herringbone.records.index import STOPPING, UPLOADING, JobIndex, JobRecord
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
