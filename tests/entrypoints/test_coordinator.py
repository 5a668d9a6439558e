"""Who failed first, and when a job is over: messages in, orders out, no processes."""

from __future__ import annotations

import pytest

from herringbone_entry.coordinator import ABORT_SECONDS, SETTLE_SECONDS, Coordinator
from herringbone_spec.failure import Failure, parse_failure


class Bench:
    """A coordinator with a clock that is turned by hand."""

    def __init__(self, *hosts: str, launcher: bool = False, across: bool = False) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, object]] = []
        self.orders: list[dict] = []
        self.coordinator = Coordinator(
            hosts,
            order=self.orders.append,
            clock=lambda: self.now,
            later=lambda seconds, call: self.timers.append((self.now + seconds, call)),
            join_timeout=600.0,
            across=across,
        )
        self.hosts, self.launcher = hosts, launcher

    def ready(self, processes: int = 1) -> None:
        for host in self.hosts:
            has_launcher = self.launcher and host == self.hosts[0]
            self.say(host, "ready", processes=processes, has_launcher=has_launcher, port=1234)

    def say(self, host: str, kind: str, **fields: object) -> None:
        self.coordinator.receive(host, {"kind": kind, **fields})

    def ended(self, rank: int, code: int | None, *, age: float = 0.0, what: str = "") -> None:
        host = f"algo-{rank + 1}"
        failure = Failure(host, rank, code or 1, what).to_json()
        self.say(host, "ended", rank=rank, code=code, age=age, failure=failure)

    def mpirun_ended(self, code: int) -> None:
        failure = Failure("algo-1", None, code, "LaunchError").to_json()
        self.say("algo-1", "launcher_ended", code=code, rank_code=code, failure=failure)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, call in due:
            call()

    @property
    def kinds(self) -> list[str]:
        return [order["kind"] for order in self.orders]

    @property
    def verdict(self) -> tuple[int, int | None]:
        finish = self.orders[-1]
        assert finish["kind"] == "finish"
        return finish["code"], parse_failure(finish["failure"]).rank


def test_a_job_starts_when_all_have_come_and_ends_when_all_have_ended() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.say("algo-2", "ready", processes=2, has_launcher=False, port=1234)
    assert bench.orders == []
    bench.say("algo-1", "ready", processes=1, has_launcher=False, port=1234)
    assert bench.orders == [
        {"kind": "start", "counts": {"algo-2": 2, "algo-1": 1}, "master_address": "127.0.0.1", "master_port": 1234}
    ]
    for rank in range(3):
        bench.say("algo-1", "ended", rank=rank, code=0, age=0.0)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


def test_the_first_failure_is_the_earliest_not_the_first_to_arrive() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.ready()
    bench.now = 10.0
    bench.ended(0, 1, what="ConnectionError")
    bench.ended(1, 3, age=0.1, what="ValueError")
    assert bench.kinds == ["start", "abort"]
    bench.turn(SETTLE_SECONDS)
    assert bench.verdict == (3, 1)


def test_a_rank_killed_under_mpirun_gets_its_code_from_mpirun() -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.ready()
    bench.ended(1, None)
    bench.turn(SETTLE_SECONDS)
    bench.ended(0, None)
    assert bench.kinds == ["start", "abort"]
    bench.mpirun_ended(137)
    assert bench.verdict == (137, 1)


def test_mpiruns_end_is_noticed_before_its_ranks() -> None:
    # MPICH's mpirun was reaped in the turn before the links of its ranks closed; a good job was called failed.
    bench = Bench("algo-1", launcher=True)
    bench.ready()
    bench.mpirun_ended(0)
    bench.ended(0, 0)
    bench.turn(SETTLE_SECONDS)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


def test_an_mpirun_that_fails_by_itself_is_the_failure() -> None:
    bench = Bench("algo-1", launcher=True)
    bench.ready()
    bench.mpirun_ended(213)
    bench.ended(0, None)
    bench.turn(SETTLE_SECONDS)
    assert bench.verdict == (213, 0)
    alone = Bench("algo-1", launcher=True)
    alone.ready()
    alone.mpirun_ended(213)
    alone.turn(ABORT_SECONDS)
    assert alone.verdict == (213, None)


def test_a_lost_host_ends_the_job_even_when_others_never_answer() -> None:
    bench = Bench("algo-1", "algo-2", "algo-3")
    bench.ready()
    bench.coordinator.lost("algo-2")
    bench.turn(ABORT_SECONDS)
    finish = bench.orders[-1]
    assert finish["code"] == 1
    assert parse_failure(finish["failure"]).message == "lost contact with algo-2"


def test_a_host_that_went_down_is_the_cause_of_ranks_that_mpirun_killed() -> None:
    # On a busy machine a killed supervisor's ranks went first, MPICH's mpirun killed the others, and rank 1 was blamed.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.ready()
    bench.ended(0, None)
    bench.turn(SETTLE_SECONDS / 2)
    bench.coordinator.lost("algo-2")
    bench.mpirun_ended(137)
    bench.turn(SETTLE_SECONDS)
    assert parse_failure(bench.orders[-1]["failure"]).render() == ("algo-2: exit code 1: lost contact with algo-2")


def test_a_stop_releases_the_ranks_when_each_has_saved_or_cannot() -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.ready()
    bench.say("algo-2", "stop")
    bench.say("algo-1", "deferred", rank=0)
    assert bench.kinds == ["start", "stop"]
    bench.ended(1, 0)
    assert bench.kinds == ["start", "stop", "release"]
    bench.ended(0, 143)
    bench.mpirun_ended(143)
    assert bench.orders[-1] == {"kind": "finish", "code": 143, "failure": None}


@pytest.mark.parametrize(("codes", "expected"), [([0, 0], 0), ([0, 1], 143)])
def test_a_stopped_job_that_ends_well_ended_well(codes: list[int], expected: int) -> None:
    bench = Bench("algo-1", "algo-2")
    bench.ready()
    bench.say("algo-1", "stop")
    for rank, code in enumerate(codes):
        bench.ended(rank, code)
    assert bench.orders[-1]["code"] == expected


def test_missing_hosts_are_named() -> None:
    bench = Bench("algo-1", "algo-2", "algo-3")
    bench.say("algo-1", "ready", processes=1, has_launcher=False, port=1234)
    bench.turn(600.0)
    assert "algo-2, algo-3 did not come within 600 s" in parse_failure(bench.orders[-1]["failure"]).message


def test_a_host_that_comes_after_the_end_hears_of_it() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.say("algo-1", "stop")
    bench.coordinator.joined()
    assert bench.kinds == ["finish", "finish"]
