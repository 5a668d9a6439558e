"""The decision at the end of an attempt, and the order of its steps, without hosts."""

from dataclasses import replace

import pytest

from herringbone.controller.attempt_end import Decision, decide_end, end_attempt, last_columns
from herringbone.controller.attempts import Saved
from herringbone.controller.hosts import Conclusion, Restart
from herringbone.controller.retry import Attempt, Policies, announced, with_progress
from herringbone.controller.verdict import Verdict
from herringbone.records.job_events import JobEvents
from herringbone_contract.errors import HostError, LaunchError
from herringbone_contract.failure import Failure, taken_away

MACHINES = {"algo-1": "n1", "algo-2": "n2", "algo-3": "n3"}
DONE = Verdict("Completed", "Completed")
LOST = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
TAKEN = Verdict("Failed", "Failed", taken_away("algo-2", "the file /run/drain"), lost="algo-2")
RAISED = Verdict("Failed", "Failed", Failure(host="algo-2", rank=1, exception="ValueError", message="no"))
FIRST = Attempt(
    1,
    MACHINES,
    why="algo-2 on n2 was lost (exit code 137, killed by SIGKILL)",
    blamed=("n2",),
    fault="host_lost",
    answer="restart",
)
LAST = "attempt 2 of 2 has failed, too"


@pytest.mark.parametrize(
    ("verdict", "logs", "earlier", "decision"),
    [
        (DONE, {}, (), Decision()),
        (LOST, {}, (), Decision(FIRST)),
        (LOST, {}, (FIRST,), Decision(notice=LAST)),
        (RAISED, {}, (), Decision()),
        (RAISED, {}, (FIRST,), Decision(notice=LAST)),
        (DONE, {}, (FIRST,), Decision()),
        (
            RAISED,
            {"algo-1": "step 1", "algo-3": "step 1\nlink 7 is flaky"},
            (),
            Decision(
                Attempt(
                    1,
                    MACHINES,
                    why="exclude_host by the log of algo-3 on n3: 'link 7 is flaky'",
                    blamed=("n3",),
                    excluded=("n3",),
                    answer="exclude_host",
                )
            ),
        ),
    ],
)
def test_what_follows_an_attempt(verdict, logs, earlier, decision):
    policies = Policies(logs={"link . is flaky": "exclude_host"})
    assert decide_end(verdict, logs, policies=policies, retries=1, machines=MACHINES, earlier=earlier) == decision


def test_a_host_that_is_taken_away_is_left_out_at_once_and_a_machine_alone_is_not_used_again():
    def decided(machines):
        return decide_end(TAKEN, {}, policies=Policies(), retries=1, machines=machines, earlier=()).failed

    assert (decided(MACHINES).blamed, decided(MACHINES).excluded) == (("n2",), ("n2",))
    assert decided({}) is None
    hosts = Hosts(TAKEN)
    assert (end_attempt(hosts), hosts.calls) == (Conclusion.OVER, [*THE_END, Verdict("Stopped", "Interrupted")])
    # Of some hosts, whoever judges the job needs the failure.
    part = Hosts(TAKEN)
    part.is_part = True
    assert (end_attempt(part), part.calls) == (Conclusion.FAILED, [*THE_END, TAKEN])


def test_the_last_columns_of_a_record():
    assert last_columns(DONE, "model.tar.gz", 7.0) == {
        "status": "Completed",
        "secondary_status": "Completed",
        "ended": 7.0,
        "failure": None,
        "model": "model.tar.gz",
    }


class Hosts:
    """Hosts of a stand-in; `calls` are what the end of the attempt asked of them, and said."""

    job, policies, machines, earlier, compress, is_part = "a", Policies(), MACHINES, (), True, False
    hourly_cost, has_others, planned = None, False, None

    def __init__(self, verdict, *, retries=0, stopping="", restart=Restart.HERE, sent=None):
        self.verdict, self.retries, self.stopping = verdict, retries, stopping
        self._restart, self._sent = restart, sent
        self.calls = []

    def judge(self):
        return self.verdict

    def logs(self):
        self.calls.append("logs")
        return {}

    def say(self, text):
        self.calls.append(text)

    def restart(self, failed):
        self.calls.append(f"restart after {failed.number}")
        if isinstance(self._restart, Exception):
            raise self._restart
        return self._restart

    def release(self):
        self.calls.append("release")

    def collect(self, verdict):
        self.calls.append("collect")

    def output(self):
        return None

    def send(self, model):
        if self._sent is not None:
            raise self._sent

    def failure_of(self, error):
        return Failure(message=str(error))

    def finish(self, verdict, model):
        self.calls.append(verdict)


THE_END = ["release", "collect"]


@pytest.mark.parametrize(
    ("hosts", "conclusion", "calls"),
    [
        (Hosts(DONE, retries=1), Conclusion.OVER, [*THE_END, DONE]),
        # Nobody reads logs of a job that has no attempt left.
        (Hosts(LOST), Conclusion.FAILED, [*THE_END, LOST]),
        (Hosts(LOST, retries=1), Conclusion.RESTART, ["logs", "restart after 1"]),
        (Hosts(LOST, retries=1, restart=Restart.ELSEWHERE), Conclusion.FAILED, ["logs", "restart after 1"]),
        (
            Hosts(LOST, retries=1, restart=Restart.NONE),
            Conclusion.FAILED,
            ["logs", "restart after 1", *THE_END, LOST],
        ),
    ],
)
def test_the_steps_of_an_end(hosts, conclusion, calls):
    assert (end_attempt(hosts), hosts.calls) == (conclusion, calls)


UNHEALTHY = Verdict(
    "Failed", "Failed", Failure("algo-2", message="unhealthy_host: algo-2: full", fault="unhealthy_host")
)
REPLACED = Attempt(
    1, MACHINES, why="unhealthy_host: algo-2: full", blamed=("n2",), excluded=("n2",), fault="unhealthy_host"
)


@pytest.mark.parametrize(
    ("retries", "has_others", "answer", "earlier", "is_restarted"),
    [
        # A machine that cannot train costs none of the attempts that the user allows.
        (0, True, "exclude_host", (), True),
        (0, True, "exclude_host", (REPLACED, REPLACED), True),
        (1, True, "exclude_host", (FIRST, REPLACED), True),
        # There is no other machine, or another process decides.
        (0, False, "exclude_host", (), False),
        # The same machine would be taken again, and again.
        (0, True, "restart", (), False),
        (1, True, "restart", (), True),
        (1, True, "fail", (), False),
    ],
)
def test_a_machine_that_cannot_train_is_replaced(retries, has_others, answer, earlier, is_restarted):
    hosts = Hosts(UNHEALTHY, retries=retries)
    hosts.has_others, hosts.earlier, hosts.policies = has_others, earlier, Policies(faults={"unhealthy_host": answer})
    assert (end_attempt(hosts) is Conclusion.RESTART) == is_restarted
    # A fault of the script's attempts counts as before.
    lost = Hosts(LOST, retries=retries)
    lost.has_others, lost.earlier = has_others, (FIRST, *earlier)
    assert end_attempt(lost) is Conclusion.FAILED


def test_a_replaced_machine_is_announced_and_counts_as_no_attempt_without_progress():
    line = announced(REPLACED, 0, {"algo-1": "n1", "algo-2": "n3"}).announced
    assert line.startswith("attempt 2 of 2: unhealthy_host: algo-2: full; restarting on n1, n3, without n2 from now on")
    saved = [replace(REPLACED, checkpoint="step-4", saved=7)] * 3
    assert with_progress(REPLACED, Saved("step-4", 7), saved).checkpoint == "step-4"
    with pytest.raises(LaunchError, match="no new step"):
        with_progress(FIRST, Saved("step-4", 7), [replace(FIRST, checkpoint="step-4", saved=7)] * 3)


def test_the_bill_of_a_job_with_a_price_is_told_before_its_end(tmp_path):
    hosts = Hosts(DONE)
    hosts.hourly_cost, hosts.events, hosts.bases = 2.4, tmp_path / "job.events", lambda: [(), ()]
    JobEvents(hosts.events).state("Training", at=10.0)
    JobEvents(hosts.events).state("Uploading", at=610.0)
    assert end_attempt(hosts) is Conclusion.OVER
    assert hosts.calls[-2:] == ["bill: about $0.40: 2 hosts for 10 min, $2.40 an hour together", DONE]
    assert b'"kind":"bill"' in hosts.events.read_bytes()


@pytest.mark.parametrize("restart", [Restart.NONE, HostError("the job was stopped")])
@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("Stopped", "the job was stopped"),
        ("MaxRuntimeExceeded", "max_run has stopped the job"),
        ("MaxCostExceeded", "max_cost has stopped the job"),
    ],
)
def test_a_job_that_is_stopped_where_another_attempt_would_follow_is_stopped_and_did_not_fail(restart, why, told):
    hosts = Hosts(LOST, retries=1, stopping=why, restart=restart)
    assert end_attempt(hosts) is Conclusion.OVER
    assert hosts.calls[0] == "logs"
    assert hosts.calls[1] == f"{FIRST.why}; no other attempt follows, because {told}"
    assert hosts.calls[2:] == [*THE_END, Verdict("Stopped", why)]
    # A failure of the script, or of the last attempt, is the job's own.
    for hosts in (Hosts(RAISED, retries=1, stopping=why), Hosts(LOST, stopping=why)):
        assert end_attempt(hosts) is Conclusion.FAILED


def test_a_stop_that_arrives_while_the_next_attempt_is_started_counts():
    class Late(Hosts):
        def restart(self, failed):
            self.stopping = "Stopped"
            raise HostError("h-2 does not answer")

    hosts = Late(LOST, retries=1)
    assert end_attempt(hosts) is Conclusion.OVER
    assert hosts.calls[-1] == Verdict("Stopped", "Stopped")


def test_a_job_that_cannot_be_restarted_says_so_in_its_log_and_its_failure():
    hosts = Hosts(LOST, retries=1, restart=HostError("too few machines"))
    assert end_attempt(hosts) is Conclusion.FAILED
    assert "the job cannot be restarted: too few machines" in hosts.calls
    assert hosts.calls[-1].failure.render() == (
        "algo-2: exit code 137, killed by SIGKILL: the job could not be restarted: too few machines"
    )


@pytest.mark.parametrize(("verdict", "message"), [(DONE, "gone"), (RAISED, "no")])
def test_a_result_that_was_not_sent_fails_a_job_that_ended_well_and_no_other(verdict, message):
    hosts = Hosts(verdict, sent=HostError("gone"))
    assert end_attempt(hosts) is Conclusion.FAILED
    assert hosts.calls[-1].failure.message == message
