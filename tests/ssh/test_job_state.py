"""Tests of the verdict on a job, from the states of its hosts."""

from types import SimpleNamespace

from herringbone.backends.ssh.agent.__main__ import Agent
from herringbone.backends.ssh.job_state import HostState, is_over, judge_job
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.failure import Failure


def state(number: int, status: str = "Completed", *, ended: float = 1.0, ahead: float = 0.0, **failure) -> HostState:
    host_failure = Failure(host=f"algo-{number}", **failure) if failure else None
    row = {
        "status": status,
        "secondary_status": status,
        "ended": ended,
        "failure": None if host_failure is None else host_failure.to_json(),
    }
    record = host_failure.to_json() if host_failure is not None and host_failure.exception else None
    return HostState(f"algo-{number}", f"gpu-{number}", row, record, ahead)


def lost(number: int) -> HostState:
    return HostState(f"algo-{number}", f"gpu-{number}", lost="no route")


def test_a_job_is_over_when_every_host_has_ended_or_is_lost():
    assert is_over([state(1), state(2)])
    assert is_over([state(1), lost(2)])
    assert not is_over([state(1), HostState("algo-2", "gpu-2")])
    # The cause may be our own network.
    assert not is_over([lost(1), lost(2)])


def test_the_first_failure_in_time_counts_by_one_clock():
    late = state(1, "Failed", ended=10.0, exit_code=1, exception="ValueError", message="late")
    early = state(2, "Failed", ended=12.0, ahead=5.0, exit_code=1, exception="KeyError", message="early")
    assert judge_job([late, early]).failure.message == "early"


def test_a_killed_host_comes_before_the_hosts_that_lost_contact_with_it():
    witness = state(1, "Failed", exit_code=1, exception="LaunchError", message="lost contact with algo-2")
    killed = state(2, "Failed", ended=2.0, exit_code=137)
    assert judge_job([witness, killed]).failure.render() == "algo-2: exit code 137, killed by SIGKILL"


def test_a_stop_that_arrives_through_another_host_is_no_failure():
    verdict = judge_job([state(1, "Stopped"), state(2, "Failed", exit_code=143)])
    assert (verdict.status, verdict.failure) == ("Stopped", None)


def test_a_dead_controller_is_the_cause_and_not_the_hosts_that_stopped_with_it():
    abandoned = state(2, "Failed", ended=3.0)
    abandoned.row["failure"] = Failure(message="its controller died").to_json()
    verdict = judge_job([state(1, "Failed", exit_code=143), abandoned])
    assert verdict.failure.message == "its controller died"


def test_a_host_that_was_killed_because_it_outlived_the_others_is_no_stop(home):
    """`description` is what the agent writes before it kills such a host."""
    home.make()
    index, killed = JobIndex(home.index), []
    for name in ("asked", "late"):
        index.add(JobRecord(name=name, backend="host", plan="{}", created=1.0))
    agent = Agent(home)
    agent._backends = dict.fromkeys(("asked", "late"), SimpleNamespace(kill=killed.append))
    agent._kill({"job": "asked"}, b"")
    agent._kill({"job": "late", "late": True}, b"")
    asked, late = state(2, "Stopped"), state(2, "Stopped")
    asked.row["description"], late.row["description"] = (index.get(name).description for name in killed)
    assert judge_job([state(1), asked]).status == "Stopped"
    verdict = judge_job([state(1), late])
    assert (verdict.status, verdict.failure.host) == ("Failed", "algo-2")
    assert "the other hosts completed, but gpu-2 did not end its host" in verdict.failure.message
    # What the user asked for, and what the script did wrong, say more.
    assert judge_job([state(1, "Stopped"), late]).status == "Stopped"
    failed = state(1, "Failed", exit_code=1, exception="ValueError", message="bad")
    assert judge_job([failed, late]).failure.message == "bad"


def test_a_lost_machine_is_named():
    assert "gpu-2 cannot be reached: no route" in judge_job([state(1), lost(2)]).failure.message
    witness = state(1, "Failed", exit_code=1, exception="LaunchError", message="lost")
    witness.row["failure"] = Failure(host="algo-2", exception="LaunchError", message="no sign of life").to_json()
    witness = HostState("algo-1", "gpu-1", witness.row, witness.row["failure"])
    assert judge_job([witness, lost(2)]).failure.message == "no sign of life: gpu-2 cannot be reached: no route"
