"""Tests of the verdict on a job, from the states of its hosts."""

from types import SimpleNamespace

import pytest

from herringbone.backends.ssh.agent.jobs import MachineJobs
from herringbone.backends.ssh.attempts.job_state import HostState, is_over, judge_job, outlived
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.failure import Failure, lost_contact


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


@pytest.mark.parametrize(
    ("waited", "blames", "heard", "cut_off", "killed", "gone"),
    [
        # Hosts 2 and 3 run on after the first one's end, and nobody blames them.
        (4.9, None, {"algo-2"}, {"algo-3"}, "", ""),
        (5.0, None, {"algo-2"}, {"algo-3"}, "23", ""),
        (9.9, None, {"algo-2", "algo-3"}, set(), "23", ""),
        (10.0, None, {"algo-2", "algo-3"}, set(), "23", "23"),
        # No connection is left that could carry a kill.
        (5.0, None, set(), {"algo-2", "algo-3"}, "23", "23"),
        # The first host lost contact with the second one: its machine has the time of one answer.
        (0.7, "algo-2", set(), {"algo-2"}, "", ""),
        (0.8, "algo-2", set(), {"algo-2"}, "", "2"),
        (0.8, "algo-2", {"algo-2"}, set(), "", ""),
        # The third host is not blamed, and so has its whole patience.
        (4.9, "algo-2", set(), {"algo-2"}, "", "2"),
        (5.0, "algo-2", set(), {"algo-2"}, "3", "2"),
        (10.0, "algo-2", {"algo-2"}, set(), "23", "23"),
    ],
)
def test_hosts_that_outlive_the_others_are_killed_and_then_given_up(waited, blames, heard, cut_off, killed, gone):
    first = state(1, "Failed", exit_code=1)
    if blames:
        first.row["failure"] = lost_contact(blames).to_json()
    states = [first, HostState("algo-2", "gpu-2"), HostState("algo-3", "gpu-3")]
    decision = outlived(states, waited, heard=heard, cut_off=cut_off)
    assert decision == ({f"algo-{number}" for number in killed}, {f"algo-{number}" for number in gone})


def test_silent_machines_alone_are_never_given_up_and_a_blamed_one_alone_has_less_time():
    silent = [HostState("algo-1", "gpu-1"), HostState("algo-2", "gpu-2")]
    assert outlived(silent, 1e6, heard=(), cut_off={"algo-1", "algo-2"}) == (set(), set())
    assert outlived([state(1), state(2)], 1e6, heard=(), cut_off=()) == (set(), set())
    # A machine that does not know the job has nothing to wait for, and the silent one is lost after the patience.
    forgotten = HostState("algo-1", "gpu-1", lost="no job", forgotten=True)
    assert outlived([forgotten, HostState("algo-2", "gpu-2")], 5.0, heard=(), cut_off={"algo-2"}).lost == {"algo-2"}
    witness = state(1, "Failed", exit_code=1)
    witness.row["failure"] = lost_contact("algo-2").to_json()
    pair = [witness, silent[1]]
    assert outlived(pair, 0.9, heard={"algo-2"}, cut_off=()) == (set(), set())
    assert outlived(pair, 1.0, heard={"algo-2"}, cut_off=()) == ({"algo-2"}, set())
    assert outlived(pair, 2.0, heard={"algo-2"}, cut_off=()) == ({"algo-2"}, {"algo-2"})


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
    jobs = MachineJobs(home, None, dict.fromkeys(("asked", "late"), SimpleNamespace(kill=killed.append)))
    jobs.verbs["kill"]({"job": "asked"}, b"")
    jobs.verbs["kill"]({"job": "late", "late": True}, b"")
    asked, late = state(2, "Stopped"), state(2, "Stopped")
    asked.row["description"], late.row["description"] = (index.get(name).description for name in killed)
    assert judge_job([state(1), asked]).status == "Stopped"
    verdict = judge_job([state(1), late])
    assert (verdict.status, verdict.failure.host) == ("Failed", "algo-2")
    assert "the other hosts completed, but gpu-2 did not end its host" in verdict.failure.message
    # What the user asked for, and what the script did wrong, say more.
    assert judge_job([state(1, "Stopped"), late]).status == "Stopped"
    # Killed on the word of a machine that nobody here can reach: no host completed.
    verdict = judge_job([late, HostState("algo-3", "gpu-3", lost="no answer")])
    assert (verdict.lost, verdict.failure.message) == ("algo-3", "gpu-3 cannot be reached: no answer")
    failed = state(1, "Failed", exit_code=1, exception="ValueError", message="bad")
    assert judge_job([failed, late]).failure.message == "bad"


def test_a_lost_machine_is_named():
    assert "gpu-2 cannot be reached: no route" in judge_job([state(1), lost(2)]).failure.message
    witness = state(1, "Failed", exit_code=1, exception="LaunchError", message="lost")
    witness.row["failure"] = Failure(host="algo-2", exception="LaunchError", message="no sign of life").to_json()
    witness = HostState("algo-1", "gpu-1", witness.row, witness.row["failure"])
    assert judge_job([witness, lost(2)]).failure.message == "no sign of life: gpu-2 cannot be reached: no route"


@pytest.mark.parametrize("status", ["MaxRuntimeExceeded", "MaxCostExceeded", "IdleTimeoutExceeded"])
def test_a_limit_that_one_machine_has_reached_stops_the_job(status):
    """The first machine's controller alone hears that the job is idle; to the others its stop looks like a failure."""
    first, second = state(1, "Stopped"), state(2, "Failed", exit_code=143)
    first.row["secondary_status"] = status
    verdict = judge_job([first, second])
    assert (verdict.status, verdict.secondary_status, verdict.failure) == ("Stopped", status, None)
