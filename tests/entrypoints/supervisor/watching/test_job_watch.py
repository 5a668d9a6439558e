"""The coordinator's part in watching a job, with literal messages: no process, no clock."""

import pytest

from herringbone_contract.events.format import encode
from herringbone_contract.failure import Failure
from herringbone_entry.supervisor.watching.job_watch import JobWatch
from herringbone_entry.supervisor.watching.looks import PATIENCE_SECONDS

HOSTS = {0: "algo-1", 1: "algo-2", 2: "algo-3"}
REDUCES = [["train.py:12 in step"], ["…/torch/distributed.py:3 in all_reduce", "train.py:12 in step"], "", True]
SLEEPS = [["train.py:7 in save"], ["train.py:7 in save"], "", False]


class Job:
    """Takes the watch's orders, and plays the hosts."""

    def __init__(self):
        self.orders, self.timers, self.faults = [], [], []
        self.watch = JobWatch(
            "algo-1",
            HOSTS,
            order=self.orders.append,
            later=lambda seconds, call: self.timers.append((seconds, call)) if seconds else call(),
            on_fault=lambda *fault: self.faults.append(fault),
        )

    def moved(self, quiet, limit=10.0, idle=99.0, *, is_starved=False, is_chosen=True):
        for rank, host in HOSTS.items():
            idles = {str(rank): idle if isinstance(idle, float) else idle[rank]}
            report = {"kind": "moved", "quiet": quiet, "limit": limit, "idle": idles, "is_chosen": is_chosen}
            report["is_starved"] = is_starved and rank == 1
            self.watch.receive(host, report)

    def look(self):
        """Return the id of the order to look, which is taken from the orders."""
        [number] = [order["id"] for order in self.orders if order["kind"] == "stacks"]
        self.orders.clear()
        return number

    def answer(self, number, *places, record=None, connections=()):
        for rank, place in enumerate(places):
            answer = {"kind": "stacks", "id": number, "rank": rank, "place": place, "record": record}
            self.watch.receive(HOSTS[rank], {**answer, "connections": dict(connections).get(rank, [])})

    @property
    def lines(self):
        return [line for order in self.orders if order["kind"] == "say" for line in order["text"].splitlines()]

    @property
    def events(self):
        return [order["event"] for order in self.orders if order["kind"] == "emit"]


def test_a_hang_names_the_odd_rank_in_the_log_and_as_events():
    job = Job()
    job.moved(9.9)
    assert job.orders == []
    job.moved(10.0)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert job.lines == [
        "hang: no line, metric or collective of any rank for 10 s: rank 1 (algo-2) at train.py:7 in save: the others "
        "wait in a collective operation; ranks 0, 2 at train.py:12 in step",
        "stacks: rank 1 (algo-2): the others wait in a collective operation",
        "stacks:     train.py:7 in save",
        "stacks: ranks 0, 2 (algo-1, algo-3)",
        "stacks:     …/torch/distributed.py:3 in all_reduce",
        "stacks:     train.py:12 in step",
    ]
    hang, stacks = job.events
    assert (hang["kind"], hang["since"], hang["ranks"]) == ("hang", 10.0, [1])
    assert (stacks["kind"], stacks["why"], stacks["text"].splitlines()) == ("stacks", "hang", job.lines)
    assert [(group["ranks"], group["odd"], group["hosts"]) for group in stacks["groups"]] == [
        ([1], True, ["algo-2"]),
        ([0, 2], False, ["algo-1", "algo-3"]),
    ]


def test_a_hang_is_a_fault_of_the_odd_rank_and_host():
    job = Job()
    job.moved(10.0)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    [(kind, failure)] = job.faults
    assert (kind, failure.host, failure.rank, failure.message) == ("hang", "algo-2", 1, job.lines[0])


def test_ranks_at_work_have_five_times_as_long_unless_they_wait_for_others():
    job = Job()
    # The ranks that wait in a collective compute, as NCCL's do, and the third does not.
    job.moved(10.0, idle=[1.0, 12.0, 1.0])
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert len(job.faults) == 1
    for quiet in (10.0, 15.0, 49.0):
        job = Job()
        job.moved(quiet, idle=[99.0, 1.0, 99.0])
        job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
        assert (job.faults, job.orders) == ([], [])
    job = Job()
    # Also where others have the CPUs that all ranks want, although these wait.
    job.moved(10.0, is_starved=True)
    job.answer(job.look(), REDUCES, REDUCES, REDUCES)
    assert (job.faults, job.orders) == ([], [])
    job = Job()
    job.moved(50.0, idle=[99.0, 1.0, 99.0])
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert len(job.faults) == 1


def test_where_no_progress_can_be_seen_a_default_limit_ends_no_job():
    job = Job()
    job.moved(10.0, is_chosen=False)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert job.faults == []
    assert job.lines[-1].startswith("the job goes on: neither steps nor collective operations are seen here")
    job = Job()
    job.moved(10.0, is_chosen=False)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES, record={"age": 11.0, "groups": {}, "entries": []})
    assert len(job.faults) == 1


def test_the_earliest_wrong_loss_of_a_kind_is_a_fault():
    job = Job()
    for rank, fault, end in ((2, "nan_loss", 15), (1, "nan_loss", 14), (0, "loss_spike", None), (2, "nan_loss", None)):
        report = {"kind": "loss", "fault": fault, "rank": rank, "text": "loss is nan", "bad": [7.5, 13, end, 1]}
        job.watch.receive(HOSTS[rank], report)
    assert job.faults == []
    for _, call in job.timers:
        call()
    assert job.lines == ["nan_loss: rank 1 (algo-2): loss is nan", "loss_spike: rank 0 (algo-1): loss is nan"]
    assert [(kind, failure.rank, failure.host, failure.bad) for kind, failure in job.faults] == [
        ("nan_loss", 1, "algo-2", (7.5, 13, 14, 1)),
        ("loss_spike", 0, "algo-1", (7.5, 13, None, 1)),
    ]
    assert [event["fault"] for event in job.events] == ["nan_loss", "loss_spike"]


def test_a_longer_standstill_at_the_same_places_is_no_news():
    job = Job()
    job.moved(10.0)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    job.orders.clear()
    job.moved(20.0)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert job.orders == []
    # A move, and then a second standstill at the same places.
    job.moved(1.0)
    job.moved(10.0)
    job.answer(job.look(), REDUCES, SLEEPS, REDUCES)
    assert job.lines[0].startswith("hang: ")


def test_a_reason_that_shows_later_is_news():
    job = Job()
    job.moved(10.0)
    job.answer(job.look(), REDUCES, REDUCES, REDUCES)
    assert "ranks 0-2 (algo-1, algo-2, algo-3) at train.py:12 in step" in job.lines[0]
    job.orders.clear()
    job.moved(20.0)
    cut = {0: [["a:1", "b:1", True]], 1: [["b:1", "a:1", False], ["b:2", "c:1", True]], 2: [["c:1", "b:2", False]]}
    job.answer(job.look(), REDUCES, REDUCES, REDUCES, connections=cut)
    assert "rank 1 (algo-2) at train.py:12 in step: no data passes between it and the others" in job.lines[0]


def test_silent_ranks_that_begin_collectives_do_not_hang():
    job = Job()
    job.moved(10.0)
    job.answer(job.look(), REDUCES, REDUCES, REDUCES, record={"age": 0.5, "groups": {}, "entries": []})
    assert job.orders == []
    job.moved(19.0)
    assert job.orders == []
    job.moved(19.5)
    assert job.look()


def test_a_host_that_does_not_answer_is_named_after_the_patience():
    job = Job()
    job.watch.receive("algo-2", {"kind": "stacks_wanted", "id": "17"})
    assert job.look() == "17"
    job.answer("17", REDUCES, SLEEPS)
    assert job.orders == []
    [(seconds, end)] = job.timers
    assert seconds == PATIENCE_SECONDS
    end()
    assert job.lines[-1] == "stacks: rank 2: no answer within 3 s"
    [stacks] = job.events
    assert (stacks["id"], stacks["why"]) == ("17", "request")
    # An answer that comes too late changes nothing.
    job.orders.clear()
    job.answer("17", REDUCES, SLEEPS, REDUCES)
    assert job.orders == []


def test_looks_are_bounded():
    job = Job()
    for number in range(100):
        job.watch.receive("algo-1", {"kind": "stacks_wanted", "id": str(number)})
    assert len(job.orders) == 4


def test_a_thousand_ranks_at_places_of_their_own_fit_into_an_event():
    hosts = {rank: f"algo-{rank + 1}" for rank in range(1000)}
    orders = []
    watch = JobWatch("algo-1", hosts, order=orders.append, later=lambda *_: None, on_fault=lambda *_: None)
    watch.receive("algo-1", {"kind": "stacks_wanted", "id": "a"})
    for rank in hosts:
        frames = [f"train.py:{rank} in {'f' * 300}"] * 12
        answer = {"kind": "stacks", "id": "a", "rank": rank, "place": [frames, frames, "", False], "connections": []}
        watch.receive(hosts[rank], {**answer, "record": None})
    [event] = [order["event"] for order in orders if order["kind"] == "emit"]
    assert encode({"t": 1.0, **event})


def test_a_straggler_is_named_with_its_host():
    job = Job()
    job.watch.receive("algo-2", {"kind": "steps", "seconds": {"1": [0.5] * 20}, "facts": {}})
    facts = {"1": {"cpu": 0.9}, "0": {"cpu": 0.5}, "2": {"cpu": 0.5}}
    job.watch.receive("algo-1", {"kind": "steps", "seconds": {"0": [0.4] * 20, "2": [0.4] * 20}, "facts": facts})
    assert job.lines == [
        "straggler: rank 1 (algo-2) needs 0.5 s for a step, 1.25 times the median of all ranks, 0.4 s, over 20 steps: "
        "it computes more: it could use 0.90 cores, the others 0.50"
    ]
    [event] = job.events
    assert (event["kind"], event["rank"], event["steps"]) == ("straggler", 1, 20)
    assert event["ratio"] == pytest.approx(1.25)


def record(*operations):
    entries = [
        {"group": "default_pg", "seq": number, "op": op, "shape": "[[4]] Float", "done": done, "p2p": False}
        for number, (op, done) in enumerate(operations, 1)
    ]
    return {"age": 3.0, "groups": {}, "entries": entries}


TIMED_OUT = Failure("algo-1", 0, 1, "RuntimeError", "gloo: Timed out waiting 1800000ms for recv operation to complete")


def test_a_collective_that_timed_out_is_explained_with_the_rank_that_is_missing():
    job = Job()
    job.watch.receive(
        "algo-1", {"kind": "record", "rank": 0, "record": record(("barrier", True), ("all_reduce", False))}
    )
    assert job.watch.look_at_failure(TIMED_OUT)
    place = {"kind": "stacks", "id": job.look(), "connections": [], "place": SLEEPS}
    job.watch.receive("algo-2", {**place, "rank": 1, "record": record(("barrier", True))})
    [(_, end)] = job.timers
    end()
    assert job.orders == []
    job.watch.explain(TIMED_OUT)
    assert job.lines == [
        "stacks: collective operation 2: rank 0 in all_reduce [[4]] Float; rank 1 has not entered it",
        "stacks: rank 1 (algo-2) at train.py:7 in save",
    ]


def test_a_failure_of_another_kind_is_not_looked_at_and_explains_itself():
    job = Job()
    failure = Failure("algo-2", 1, 1, "ValueError", "bad batch")
    assert not job.watch.look_at_failure(TIMED_OUT)
    job.watch.receive("algo-2", {"kind": "record", "rank": 1, "record": record(("barrier", True))})
    job.watch.receive(
        "algo-1", {"kind": "record", "rank": 0, "record": record(("barrier", True), ("all_reduce", False))}
    )
    assert not job.watch.look_at_failure(failure)
    # The rank that failed has missed the next operation, of course.
    job.watch.explain(failure)
    assert job.orders == []


def test_a_record_may_hold_anything():
    job = Job()
    for junk in ({}, {"entries": 3}, {"entries": [{}]}, {"entries": [None], "groups": []}):
        job.watch.receive("algo-1", {"kind": "record", "rank": 0, "record": junk})
        job.watch.explain(TIMED_OUT)
    job.watch.receive("algo-1", {"kind": "stacks", "id": "x"})
    job.watch.receive("algo-1", {"kind": "steps", "seconds": {"one": None}})
    job.watch.receive("algo-1", {"kind": "moved"})
    assert all(line.startswith("stacks: not known: ") for line in job.lines)


def unused(job, seconds, what="GPUs", limit=600.0):
    for host in HOSTS.values():
        job.watch.receive(host, {"kind": "unused", "seconds": seconds, "covers": 1.0, "what": what, "limit": limit})


def test_unused_devices_are_told_at_half_of_the_limit_and_at_the_limit():
    job = Job()
    for seconds in (200.0, 300.0, 301.0, 600.0, 601.0, 0.0):
        unused(job, seconds)
    text = "none of its GPUs has been used for {} s, and idle_timeout is 600 s"
    assert job.lines == [
        f"idle: {text.format(300)}",
        f"idle: {text.format(600)}",
        "idle: its devices are used again",
    ]
    assert [(event["kind"], event["seconds"], event["ends"]) for event in job.events] == [
        ("idle", 300.0, False),
        ("idle", 600.0, True),
        ("idle", 0.0, False),
    ]
    assert job.events[0]["what"] == text.format(300)
    assert job.faults == [("idle", Failure(None, None, message=job.lines[1]))]
