"""The rules for a restart of a job, and for the machines that it must avoid."""

import pytest

from herringbone.controller.attempts import Saved
from herringbone.controller.retry import (
    Attempt,
    Policies,
    PolicyMatch,
    announced,
    decide,
    excluded_machines,
    find_policy,
    unkillable,
    with_progress,
)
from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone_contract.errors import LaunchError
from herringbone_contract.failure import Failure, lost_contact

MACHINES = {"algo-1": "n1", "algo-2": "n2", "algo-3": "n3"}
LOST = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
RAISED = Verdict("Failed", "Failed", Failure(host="algo-2", rank=1, exception="ValueError", message="no"))


def decided(verdict, match=None, earlier=(), retries=3, machines=MACHINES):
    return decide(verdict, match or find_policy(Policies(), verdict, {}), machines, earlier, retries)


def test_a_lost_host_is_retried_and_a_script_that_raised_is_not():
    assert decided(LOST) == Attempt(
        1,
        MACHINES,
        why="algo-2 on n2 was lost (exit code 137, killed by SIGKILL)",
        blamed=("n2",),
        fault="host_lost",
        answer="restart",
    )
    assert decided(RAISED) is None
    assert decided(Verdict("Completed", "Completed")) is None


def test_the_number_of_attempts_is_limited():
    assert decided(LOST, retries=0) is None
    assert decided(LOST, earlier=[Attempt(1, MACHINES)], retries=1) is None
    assert decided(LOST, earlier=[Attempt(1, MACHINES)], retries=2).number == 2


def test_a_machine_that_is_lost_twice_is_excluded():
    first = decided(LOST)
    other = Attempt(2, MACHINES, blamed=("n3",))
    assert decided(LOST, earlier=[other]).excluded == ()
    assert decided(LOST, earlier=[first, other]).excluded == ("n2",)
    # Machines are blamed, not hosts: another machine as the same host is not excluded.
    moved = {**MACHINES, "algo-2": "n4"}
    assert decided(LOST, earlier=[first], machines=moved).excluded == ()


@pytest.mark.parametrize(
    ("action", "hosts", "blamed", "excluded"),
    [
        ("restart", ("algo-2",), (), ()),
        ("exclude_host", ("algo-2",), ("n2",), ("n2",)),
        # A line in every log singles out no host.
        ("exclude_host", ("algo-1", "algo-2", "algo-3"), ("n1", "n2", "n3"), ()),
        ("blame_silent_host", ("algo-1", "algo-3"), ("n2",), ()),
        # If most hosts are silent, or none is, silence does not show which host the others waited for.
        ("blame_silent_host", ("algo-1",), (), ()),
        ("blame_silent_host", ("algo-1", "algo-2", "algo-3"), (), ()),
    ],
)
def test_a_matching_log_retries_a_failure_of_the_script(action, hosts, blamed, excluded):
    attempt = decided(RAISED, PolicyMatch(action, hosts, "the line"))
    assert (attempt.blamed, attempt.excluded) == (blamed, excluded)
    assert "'the line'" in attempt.why


def test_a_matching_log_can_end_a_job_that_lost_a_host():
    assert decided(LOST, PolicyMatch("fail", ("algo-2",))) is None


def test_on_one_machine_no_host_can_be_excluded():
    assert decided(LOST, earlier=[decided(LOST, machines={})], machines={}).excluded == ()
    assert decided(LOST, PolicyMatch("exclude_host", ("algo-2",)), machines={}) is None


def test_excluded_machines_stay_excluded():
    attempts = [Attempt(1, MACHINES, why="ECC", excluded=("n2",)), Attempt(2, MACHINES, why="lost")]
    assert excluded_machines(attempts) == {"n2": "ECC"}


def test_a_users_policy_comes_before_the_defaults_and_can_overrule_them():
    logs = {"algo-1": "step 1", "algo-2": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}
    assert find_policy(Policies(), RAISED, logs).action == "exclude_host"
    own = Policies(logs={"ECC error": "fail"}, faults={"device_error": "restart"})
    assert find_policy(own, RAISED, logs) == PolicyMatch("fail", ("algo-2",), logs["algo-2"])
    assert find_policy(Policies(faults=own.faults), RAISED, logs).action == "restart"
    assert find_policy(Policies(), RAISED, {"algo-1": "ValueError: no"}) is None


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", "fail"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.", "exclude_host"),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=7, Contained: SM", "exclude_host"),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, Graphics Exception", None),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)", "blame_silent_host"),
    ],
)
def test_the_default_policies(line, action):
    died = Verdict("Failed", "Failed", Failure(host="algo-2", rank=1, exit_code=134))
    match = find_policy(Policies(), died, {"algo-1": line})
    assert (match and match.action) == action


def test_what_a_script_has_survived_decides_nothing():
    logs = {"algo-1": "batch 64: CUDA out of memory, trying 32", "algo-2": "INFO: NCCL timeout is 600 s"}
    assert find_policy(Policies(), LOST, logs).fault == "host_lost"
    assert find_policy(Policies(faults={"out_of_memory": "replan"}), RAISED, logs) is None
    message = "CUDA out of memory. Tried to allocate 2.00 GiB"
    failed = RAISED.failure._replace(exception="OutOfMemoryError", message=message)
    assert find_policy(Policies(), Verdict("Failed", "Failed", failed), logs).fault == "out_of_memory"


HUNG = Verdict("Failed", "Failed", Failure("algo-2", 1, message="hang: no line: rank 1 (algo-2)", fault="hang"))


def test_a_hang_restarts_and_excludes_the_odd_host_at_the_second_time():
    first = decided(HUNG)
    assert (first.why, first.blamed, first.excluded) == ("hang: no line: rank 1 (algo-2)", ("n2",), ())
    assert decided(HUNG, earlier=[first]).excluded == ("n2",)
    assert decided(HUNG, retries=0) is None


@pytest.mark.parametrize(("answer", "excluded"), [("restart", ()), ("exclude_host", ("n2",)), ("fail", None)])
def test_a_users_answer_to_a_hang(answer, excluded):
    attempt = decided(HUNG, find_policy(Policies(faults={"hang": answer}), HUNG, {}))
    assert (attempt and attempt.excluded) == excluded


def test_a_pattern_in_the_log_comes_before_the_fault():
    policies = Policies(logs={"^hang: ": "fail"}, faults={"hang": "restart"})
    assert find_policy(policies, HUNG, {"algo-1": "hang: no line"}).action == "fail"


@pytest.mark.parametrize("answer", ["restart", "exclude_host", "fail"])
def test_a_users_answer_to_a_lost_host(answer):
    attempt = decided(LOST, find_policy(Policies(faults={"host_lost": answer}), LOST, {}))
    assert (attempt and attempt.excluded) == {"restart": (), "exclude_host": ("n2",), "fail": None}[answer]


def test_a_machine_with_a_process_that_nobody_can_end_is_excluded():
    stuck = unkillable({"algo-3": "[algo-3] cannot be ended: process 7 (python, D (disk sleep)) did not take SIGKILL"})
    match = find_policy(Policies(), HUNG, {})
    assert decide(HUNG, match, MACHINES, [], 3, stuck).excluded == ("n3",)


def test_the_third_attempt_in_a_row_without_a_newer_checkpoint_is_the_last():
    def ends(*newest):
        """Return the message after the last of some attempts, which leave these checkpoints; "" for another attempt."""
        earlier = []
        for number, saved in enumerate(newest[:-1], 1):
            earlier.append(with_progress(Attempt(number, MACHINES), saved, earlier))
        try:
            with_progress(Attempt(len(newest), MACHINES), newest[-1], earlier)
        except LaunchError as error:
            return str(error)
        return ""

    a, b, rewritten = Saved("step-1.pt", 1), Saved("step-2.pt", 2), Saved("step-1.pt", 3)
    assert ends(a, a, a) == ends(a, b, b, b) == ends(a, a, a, b, b, b) == ends(a, a, a, rewritten) == ""
    for attempts in ((a, a, a, a), (b, a, a, a, a), (None, None, a, a, a, a)):
        assert ends(*attempts).startswith("no new step since checkpoint step-1.pt in 3 attempts")
    # A job that saves nothing has all of its attempts.
    assert ends(*[None] * 9) == ""


def test_the_announcement_names_the_reason_the_machines_and_the_checkpoint():
    attempt = decided(LOST, earlier=[decided(LOST)])
    assert announced(attempt, 3, {"algo-1": "n1", "algo-2": "n3"}).announced == (
        "attempt 3 of 4: algo-2 on n2 was lost (exit code 137, killed by SIGKILL); restarting on n1, n3, "
        "without n2 from now on; there is no checkpoint"
    )


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        ([HostEnd("algo-1", 1, record=lost_contact("algo-2")), HostEnd("algo-2", 137)], "algo-2"),
        ([HostEnd("algo-1", 1, record=lost_contact("algo-2"))], "algo-2"),
        ([HostEnd("algo-1", 1, lost=True)], "algo-1"),
        # Here the kernel, the rank and the script are the reason, not the platform.
        ([HostEnd("algo-1", 137, cause="out of memory: the container may use 64 MiB")], None),
        ([HostEnd("algo-1", 137, record=Failure(host="algo-1", rank=0, exit_code=137))], None),
        ([HostEnd("algo-1", 1)], None),
    ],
)
def test_a_host_is_lost_when_the_platform_ended_it(ends, lost):
    assert judge(ends).lost == lost
