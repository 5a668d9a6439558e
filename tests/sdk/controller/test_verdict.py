"""The verdict on a job, from how its hosts ended."""

import pytest

from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone_contract.failure import Failure, lost_contact, lost_process

RANK_1 = Failure(host="algo-2", rank=1, exit_code=3, exception="ValueError", message="no")
LOST = Failure(host="algo-2", exit_code=1, message="lost contact with algo-2")


def test_hosts_that_succeed_complete_the_job():
    assert judge([HostEnd("algo-1", 0), HostEnd("algo-2", 0)]) == Verdict("Completed", "Completed")


def test_every_host_records_the_first_failing_rank():
    ends = [HostEnd("algo-1", 3, record=RANK_1), HostEnd("algo-2", 3, record=RANK_1)]
    assert judge(ends) == Verdict("Failed", "Failed", RANK_1)


def test_a_killed_host_is_named_although_the_others_end_first():
    """The other host notices the loss, and may be reaped before the killed one."""
    ends = [HostEnd("algo-1", 1, record=LOST), HostEnd("algo-2", 137, tail=("[algo-2:1] step 3",))]
    assert judge(ends).failure == Failure(host="algo-2", exit_code=137, log_tail=("[algo-2:1] step 3",))
    assert judge(ends).failure.render().startswith("algo-2: exit code 137, killed by SIGKILL")


@pytest.mark.parametrize("cut_off", ["algo-1", "algo-3"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_three_hosts_the_one_that_is_cut_off_is_named(cut_off: str, first: int):
    """The host that is cut off may end first, and says that it lost a healthy one."""
    said = dict.fromkeys(["algo-1", "algo-2", "algo-3"], cut_off) | {
        cut_off: "algo-2" if cut_off == "algo-1" else "algo-1"
    }
    ends = [HostEnd(host, 1, record=lost_contact(lost)) for host, lost in said.items()]
    verdict = judge(ends[first:] + ends[:first])
    assert (verdict.failure, verdict.lost) == (lost_contact(cut_off), cut_off)


SILENT = "silent for 3 heartbeats of 5 s"


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_hosts_that_lost_each_other_none_is_blamed_alone(first: int):
    """The network of algo-2 was cut, and the text said that algo-1 was lost."""
    ends = [
        HostEnd("algo-1", 1, record=lost_contact("algo-2", SILENT)),
        HostEnd("algo-2", 1, record=lost_contact("algo-1", SILENT)),
    ]
    verdict = judge(ends[first:] + ends[:first])
    one, other = ("algo-2", "algo-1")[first], ("algo-1", "algo-2")[first]
    assert verdict.failure.message == (
        f"lost contact with {one} ({SILENT}); {one} lost contact with {other}, too: the cause may be either, or the "
        "network between them"
    )
    assert verdict.lost == one


def test_a_host_that_stood_still_is_named_alone():
    ends = [
        HostEnd("algo-1", 1, record=lost_contact("algo-2", SILENT)),
        HostEnd("algo-2", 1, record=lost_contact("algo-1")),
    ]
    assert judge(ends).failure == lost_contact("algo-2", SILENT)


def test_a_killed_process_of_ours_is_a_lost_host():
    """No script kills mpirun, so such a job is retried."""
    failure = lost_process("algo-2", "mpirun's daemon ended before its ranks did", 137)
    verdict = judge([HostEnd("algo-1", 137, record=failure), HostEnd("algo-2", 137, record=failure)])
    assert (verdict.failure, verdict.lost) == (failure, "algo-2")


def test_the_record_of_a_killed_rank_is_preferred():
    killed = Failure(host="algo-1", rank=0, exit_code=137)
    assert judge([HostEnd("algo-1", 137, record=killed)]).failure == killed


def test_without_a_record_the_first_host_and_its_last_lines_are_the_failure():
    ends = [HostEnd("algo-1", 1, tail=("No module named herringbone_entry",)), HostEnd("algo-2", 1)]
    assert judge(ends).failure == Failure(host="algo-1", exit_code=1, log_tail=("No module named herringbone_entry",))


def test_a_stop_is_not_a_failure():
    ends = [HostEnd("algo-1", 143, ordered=True), HostEnd("algo-2", 3, ordered=True, record=RANK_1)]
    assert judge(ends, stopped=True) == Verdict("Stopped", "Stopped")
    assert judge(ends, limit="max_run") == Verdict("Stopped", "MaxRuntimeExceeded")
    assert judge(ends, limit="max_cost") == Verdict("Stopped", "MaxCostExceeded")
    idle = HostEnd("algo-1", 143, record=Failure(exit_code=143, fault="idle"))
    assert judge([idle]) == Verdict("Stopped", "IdleTimeoutExceeded")


def test_a_failure_before_the_stop_stays_a_failure():
    ends = [HostEnd("algo-2", 3, record=RANK_1), HostEnd("algo-1", 143, ordered=True)]
    assert judge(ends, stopped=True) == Verdict("Failed", "Failed", RANK_1)


def test_a_job_that_saved_on_sigterm_is_still_stopped():
    assert judge([HostEnd("algo-1", 0, ordered=True)], stopped=True) == Verdict("Stopped", "Stopped")


def test_a_stop_that_came_when_all_hosts_had_ended_stopped_nothing():
    """A controller that stood still reads its signals later than the ends of its hosts."""
    ends = [HostEnd("algo-1", 0), HostEnd("algo-2", 0)]
    assert judge(ends, stopped=True) == Verdict("Completed", "Completed")


def test_a_cause_that_the_host_could_not_see_is_in_the_failure():
    """The kernel killed the supervisor, or a rank of which the supervisor knows only the signal."""
    cause = "out of memory: the container may use 64 MiB"
    assert judge([HostEnd("algo-1", 137, cause=cause)]).failure == Failure("algo-1", None, 137, message=cause)
    killed = Failure("algo-1", 0, 137)
    assert judge([HostEnd("algo-1", 137, record=killed, cause=cause)]).failure == Failure(
        "algo-1", 0, 137, message=cause
    )
    raised = Failure("algo-1", 0, 1, "MemoryError")
    assert judge([HostEnd("algo-1", 1, record=raised, cause=cause)]).failure == raised


def test_a_job_that_its_policy_stops_is_stopped_and_one_that_a_fault_ends_has_failed():
    record = Failure("algo-1", 0, 143, message="nan_loss: rank 0 (algo-1): loss is nan", fault="nan_loss")
    ends = [HostEnd("algo-1", 143, record=record), HostEnd("algo-2", 143, record=record)]
    assert judge(ends) == Verdict("Stopped", "StoppedByPolicy")
    failed = [HostEnd("algo-1", 1, record=record._replace(exit_code=1))]
    assert judge(failed).status == "Failed"
