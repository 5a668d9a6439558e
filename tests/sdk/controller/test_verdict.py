"""How a job ended, from how its hosts ended."""

from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone_contract.failure import Failure

RANK_1 = Failure(host="algo-2", rank=1, exit_code=3, exception="ValueError", message="no")
LOST = Failure(host="algo-2", exit_code=1, message="lost contact with algo-2")


def test_all_went_well():
    assert judge([HostEnd("algo-1", 0), HostEnd("algo-2", 0)]) == Verdict("Completed", "Completed")


def test_every_host_tells_of_the_first_failing_rank():
    ends = [HostEnd("algo-1", 3, record=RANK_1), HostEnd("algo-2", 3, record=RANK_1)]
    assert judge(ends) == Verdict("Failed", "Failed", RANK_1)


def test_a_host_killed_outright_is_named_although_the_others_tell_first():
    """The other host notices the loss, and may be reaped before the one that was killed."""
    ends = [HostEnd("algo-1", 1, record=LOST), HostEnd("algo-2", 137, tail=("[algo-2:1] step 3",))]
    assert judge(ends).failure == Failure(host="algo-2", exit_code=137, log_tail=("[algo-2:1] step 3",))
    assert judge(ends).failure.render().startswith("algo-2: exit code 137, killed by SIGKILL")


def test_a_rank_killed_leaves_a_record_which_is_better():
    killed = Failure(host="algo-1", rank=0, exit_code=137)
    assert judge([HostEnd("algo-1", 137, record=killed)]).failure == killed


def test_without_any_record_the_first_host_and_its_last_lines_must_do():
    ends = [HostEnd("algo-1", 1, tail=("No module named herringbone_entry",)), HostEnd("algo-2", 1)]
    assert judge(ends).failure == Failure(host="algo-1", exit_code=1, log_tail=("No module named herringbone_entry",))


def test_a_stop_is_no_failure():
    ends = [HostEnd("algo-1", 143, ordered=True), HostEnd("algo-2", 3, ordered=True, record=RANK_1)]
    assert judge(ends, stopped=True) == Verdict("Stopped", "Stopped")
    assert judge(ends, max_run_over=True) == Verdict("Stopped", "MaxRuntimeExceeded")


def test_a_failure_before_the_stop_stays_one():
    ends = [HostEnd("algo-2", 3, record=RANK_1), HostEnd("algo-1", 143, ordered=True)]
    assert judge(ends, stopped=True) == Verdict("Failed", "Failed", RANK_1)


def test_a_job_that_saved_itself_on_sigterm_is_still_stopped():
    assert judge([HostEnd("algo-1", 0, ordered=True)], stopped=True) == Verdict("Stopped", "Stopped")


def test_a_cause_that_the_host_could_not_see_is_told():
    """The kernel killed for memory: the supervisor itself, or a rank, of which its supervisor knows only the signal."""
    cause = "out of memory: the container may use 64 MiB"
    assert judge([HostEnd("algo-1", 137, cause=cause)]).failure == Failure("algo-1", None, 137, message=cause)
    killed = Failure("algo-1", 0, 137)
    assert judge([HostEnd("algo-1", 137, record=killed, cause=cause)]).failure == Failure(
        "algo-1", 0, 137, message=cause
    )
    raised = Failure("algo-1", 0, 1, "MemoryError")
    assert judge([HostEnd("algo-1", 1, record=raised, cause=cause)]).failure == raised
