"""The coordinator finds the first failure and the end of a job: messages in, orders out, no processes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from herringbone_contract.failure import Failure, lost_process
from herringbone_contract.failure_text import parse_failure
from herringbone_entry.supervisor.coordinator import ABORT_SECONDS, SETTLE_SECONDS, Coordinator


class Bench:
    """A coordinator with a clock that the test moves."""

    def __init__(
        self,
        *hosts: str,
        launcher: bool = False,
        across: bool = False,
        tensorflow: tuple[int, ...] = (),
        policies: Mapping[str, str] = MappingProxyType({}),
        infra_check: bool | None = False,
    ) -> None:
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
            policies=policies,
            infra_check=infra_check,
        )
        self.hosts, self.launcher, self.tensorflow = hosts, launcher, tensorflow

    def all_ready(self, processes: int = 1) -> None:
        for host in self.hosts:
            has_launcher = self.launcher and host == self.hosts[0]
            self.host_ready(host, processes=processes, has_launcher=has_launcher)

    def host_ready(
        self, host: str, *, processes: int = 1, has_launcher: bool = False, server_port: int | None = None
    ) -> None:
        ports = {"port": 1234, "reduce_port": 1235, "server_port": server_port, "tensorflow": self.tensorflow}
        chief = len(self.tensorflow) == 2
        self.report(host, "ready", processes=processes, has_launcher=has_launcher, has_chief=chief, **ports)

    def report(self, host: str, kind: str, **fields: object) -> None:
        self.coordinator.receive(host, {"kind": kind, "obeyed": False, **fields})

    def stop(self, host: str, **calls: int) -> None:
        """Ask for a stop; `calls` are the most calls of the hosts' ranks, by host without its hyphen."""
        self.report(host, "stop", why="SIGTERM", leaving=False)
        for each in self.hosts:
            self.report(each, "asked", most=calls.get(each.replace("-", ""), 0))

    def ended(
        self,
        rank: int,
        code: int | None,
        *,
        age: float = 0.0,
        what: str = "",
        seen: int | None = None,
        reaped: bool = False,
        over: bool = False,
        obeyed: bool = False,
    ) -> None:
        host = f"algo-{rank + 1}"
        failure, how = Failure(host, rank, code or 1, what).to_json(), {"seen": seen, "reaped": reaped, "over": over}
        self.report(host, "ended", rank=rank, code=code, obeyed=obeyed, age=age, failure=failure, **how)

    def mpirun_ended(self, code: int, *, killed: bool = False) -> None:
        failure = Failure("algo-1", None, code, "LaunchError")
        if killed:
            failure = lost_process("algo-1", "mpirun ended before its ranks did", code)
        self.report("algo-1", "launcher_ended", code=code, rank_code=code, killed=killed, failure=failure.to_json())

    def daemon_ended(self, host: str, code: int, *, killed: bool) -> None:
        event = {"kind": "daemon_ended", "host": "algo-1", "number": 0, "code": code, "killed": killed, "tail": []}
        self.coordinator.receive(host, event)

    def advance(self, seconds: float) -> None:
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


def test_a_job_starts_when_all_hosts_are_ready_and_ends_when_all_ranks_have_ended() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.host_ready("algo-2", processes=2)
    assert bench.orders == []
    bench.host_ready("algo-1")
    meeting = {"address": "127.0.0.1", "port": 1234, "reduce_port": 1235, "listen": "127.0.0.1"}
    names = {"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}
    meeting |= {"servers": "", "tensorflow": [], "names": names}
    counts = {"counts": {"algo-2": 2, "algo-1": 1}, "machine_ranks": {"algo-2": 3, "algo-1": 3}}
    assert bench.orders == [{"kind": "start", **counts, "meeting": meeting}]
    for rank in range(3):
        bench.report("algo-1", "ended", rank=rank, code=0, over=True, age=0.0, failure=None)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


def test_the_first_failure_is_the_earliest_not_the_first_to_arrive() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.all_ready()
    bench.now = 10.0
    bench.ended(0, 1, what="ConnectionError")
    bench.ended(1, 3, age=0.1, what="ValueError")
    assert bench.kinds == ["start", "abort"]
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (3, 1)


def test_a_rank_killed_under_mpirun_gets_its_code_from_mpirun() -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.ended(1, None)
    bench.advance(SETTLE_SECONDS)
    bench.ended(0, None)
    # No rank is left that mpirun could give time to.
    assert bench.kinds == ["start", "abort", "hurry"]
    bench.mpirun_ended(137)
    assert bench.verdict == (137, 1)


def test_mpiruns_end_is_noticed_before_its_ranks() -> None:
    # MPICH's mpirun was reaped in the turn before the links of its ranks closed; a good job counted as failed.
    bench = Bench("algo-1", launcher=True)
    bench.all_ready()
    bench.mpirun_ended(0)
    bench.ended(0, 0)
    bench.advance(SETTLE_SECONDS)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("over", "code"), [((True, True), 0), ((True, False), 134)])
def test_a_crash_of_mpiruns_rank_is_no_failure_once_all_are_over(
    over: tuple[bool, bool], code: int, first: bool
) -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    if first:
        bench.mpirun_ended(134)
    for rank in range(2):
        bench.ended(rank, 0, over=over[rank])
    if not first:
        bench.mpirun_ended(134)
    bench.advance(SETTLE_SECONDS)
    assert bench.orders[-1]["kind"] == "finish"
    assert bench.orders[-1]["code"] == code


def test_an_mpirun_that_fails_by_itself_is_the_failure() -> None:
    bench = Bench("algo-1", launcher=True)
    bench.all_ready()
    bench.mpirun_ended(213)
    bench.ended(0, None)
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (213, 0)
    alone = Bench("algo-1", launcher=True)
    alone.all_ready()
    alone.mpirun_ended(213)
    alone.advance(ABORT_SECONDS)
    assert alone.verdict == (213, None)


def test_a_lost_host_ends_the_job_even_when_others_never_answer() -> None:
    bench = Bench("algo-1", "algo-2", "algo-3")
    bench.all_ready()
    bench.coordinator.lost("algo-2")
    bench.advance(ABORT_SECONDS)
    finish = bench.orders[-1]
    assert finish["code"] == 1
    assert parse_failure(finish["failure"]).message == "lost contact with algo-2"


def test_a_host_that_went_down_is_the_cause_of_ranks_that_mpirun_killed() -> None:
    # On a busy machine a killed supervisor's ranks went first, MPICH's mpirun killed the others, and rank 1 was blamed.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.ended(0, None)
    bench.advance(SETTLE_SECONDS / 2)
    bench.coordinator.lost("algo-2")
    bench.mpirun_ended(137)
    bench.advance(SETTLE_SECONDS)
    assert parse_failure(bench.orders[-1]["failure"]).render() == ("algo-2: exit code 1: lost contact with algo-2")


def test_a_stop_releases_the_ranks_when_each_has_saved_or_cannot() -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.stop("algo-2")
    bench.report("algo-1", "deferred", rank=0)
    assert bench.kinds == ["start", "ask", "stop"]
    bench.ended(1, 0)
    assert bench.kinds == ["start", "ask", "stop", "release"]
    bench.ended(0, 143)
    bench.mpirun_ended(143)
    assert bench.orders[-1] == {"kind": "finish", "code": 143, "failure": None}


@pytest.mark.parametrize(("codes", "expected"), [([0, 0], 0), ([0, 1], 143)])
def test_a_stopped_job_that_ends_well_ended_well(codes: list[int], expected: int) -> None:
    bench = Bench("algo-1", "algo-2")
    bench.all_ready()
    bench.stop("algo-1")
    for rank, code in enumerate(codes):
        bench.ended(rank, code)
    assert bench.orders[-1]["code"] == expected


def test_missing_hosts_are_named() -> None:
    bench = Bench("algo-1", "algo-2", "algo-3")
    bench.host_ready("algo-1")
    bench.advance(600.0)
    assert "algo-2, algo-3 did not come within 600 s" in parse_failure(bench.orders[-1]["failure"]).message


def test_a_host_that_joins_after_the_end_receives_the_last_order() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.stop("algo-1")
    bench.coordinator.joined()
    assert bench.kinds == ["finish", "finish"]


def helped(*, across: bool = False) -> Bench:
    """Return a job of two training hosts and two helpers, which were ready in another order."""
    bench = Bench("algo-1", "algo-2", "algo-3", "algo-4", across=across)
    bench.host_ready("algo-4", processes=0, server_port=7004)
    bench.host_ready("algo-1")
    bench.host_ready("algo-2")
    bench.host_ready("algo-3", processes=0, server_port=7003)
    return bench


def test_ranks_receive_the_servers_in_the_order_of_their_hosts() -> None:
    (start,) = helped().orders
    assert start["meeting"]["servers"] == "algo-3=127.0.0.1:7003,algo-4=127.0.0.1:7004"
    assert start["counts"] == {"algo-1": 1, "algo-2": 1, "algo-3": 0, "algo-4": 0}


def test_across_machines_a_server_has_the_address_of_its_host_or_its_name() -> None:
    bench = helped(across=True)
    facts = {
        "address": "10.0.0.3",
        "unknown": [],
        "wall": 0.0,
        "group": "cpu",
        "cpus": 2,
        "gpus": 0,
        "machine": "m",
        "known": {},
    }
    disk = {"free_bytes": 1 << 40, "interface": "eth0", "named_interface": None}
    bench.report("algo-3", "checked", ask="look", report=facts | disk)
    bench.advance(600.0)
    assert bench.orders[-1]["meeting"]["servers"] == "algo-3=10.0.0.3:7003,algo-4=algo-4:7004"


def test_useless_helpers_get_an_advice() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.host_ready("algo-1")
    bench.host_ready("algo-2", processes=0, server_port=7002)
    assert bench.kinds == ["say", "start"]
    assert bench.orders[0]["text"].startswith("advice: one host trains")


def server_ended(bench: Bench, code: int, *, killed: bool = False) -> None:
    failure = Failure("algo-3", None, code, message="ended").to_json()
    bench.report("algo-3", "server_ended", code=code, killed=killed, failure=failure)


@pytest.mark.parametrize(
    ("code", "killed", "blamed"),
    [(137, True, "algo-3"), (139, False, "algo-2"), (1, False, "algo-2"), (0, False, "algo-2")],
)
def test_a_killed_server_is_the_cause_of_the_errors_of_ranks_that_miss_it(code: int, killed: bool, blamed: str) -> None:
    # A server that ended by itself, or crashed (139), may have ended because of a rank: the earlier end is the cause.
    bench = helped()
    bench.ended(1, 1, what="ConnectionError")
    bench.advance(SETTLE_SECONDS / 2)
    server_ended(bench, code, killed=killed)
    bench.ended(0, 1, what="ConnectionError")
    bench.advance(SETTLE_SECONDS)
    assert parse_failure(bench.orders[-1]["failure"]).host == blamed


def test_a_server_that_ends_well_too_early_fails_the_job() -> None:
    bench = helped()
    server_ended(bench, 0)
    bench.advance(ABORT_SECONDS)
    assert bench.orders[-1]["code"] == 1


def test_a_lost_helper_host_is_the_cause_as_well() -> None:
    bench = helped()
    bench.ended(1, 1, what="ConnectionError")
    bench.coordinator.lost("algo-4")
    bench.ended(0, 1, what="ConnectionError")
    bench.advance(SETTLE_SECONDS)
    assert parse_failure(bench.orders[-1]["failure"]).render() == "algo-4: exit code 1: lost contact with algo-4"


def test_a_server_s_end_during_a_stop_fails_nothing() -> None:
    bench = helped()
    bench.stop("algo-1")
    server_ended(bench, 137)
    bench.ended(0, 0)
    bench.ended(1, 0)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


def test_ranks_receive_the_addresses_of_all_tensorflow_servers() -> None:
    bench = Bench("algo-1", "algo-2", tensorflow=(7000, 7001))
    bench.all_ready()
    (start,) = bench.orders
    assert start["meeting"]["tensorflow"] == [["127.0.0.1", 7000, 7001]] * 2


def test_a_job_closes_when_its_chief_has_ended_well() -> None:
    bench = Bench("algo-1", "algo-2", "algo-3", tensorflow=(7000, 7001))
    bench.all_ready()
    bench.ended(1, 0)
    assert bench.kinds == ["start"]
    bench.ended(0, 0)
    assert bench.kinds == ["start", "stop"]
    # Neither the others' codes nor a host that leaves early change how the job ended.
    server_ended(bench, 143)
    bench.ended(2, 143)
    assert bench.orders[-1] == {"kind": "finish", "code": 0, "failure": None}


def test_a_chief_that_fails_fails_the_job() -> None:
    bench = Bench("algo-1", "algo-2", tensorflow=(7000, 7001))
    bench.all_ready()
    bench.ended(0, 3)
    bench.advance(ABORT_SECONDS)
    assert bench.verdict == (3, 0)


def test_hosts_on_one_machine_count_each_others_ranks() -> None:
    # Two containers of one machine took all of its cores each.
    bench = Bench("algo-1", "algo-2", "algo-3", "algo-4", across=True)
    for number, host in enumerate(bench.hosts):
        bench.host_ready(host, processes=number + 1)
    facts = {
        "address": None,
        "unknown": [],
        "wall": 0.0,
        "group": "cpu",
        "cpus": 2,
        "gpus": 0,
        "known": {},
        "free_bytes": 1 << 40,
    }
    for host, machine in zip(bench.hosts, ["a", "b", "a"], strict=False):
        own = {"interface": "eth0", "named_interface": None, "machine": machine}
        bench.report(host, "checked", ask="look", report=facts | own)
    # algo-4 does not answer.
    bench.advance(600.0)
    assert bench.orders[-1]["machine_ranks"] == {"algo-1": 4, "algo-2": 2, "algo-3": 4, "algo-4": 4}


def test_ranks_that_had_ended_well_are_named_next_to_the_one_that_failed() -> None:
    """A rank that returns early closes its connections, and only the others' errors about that were shown."""
    bench = Bench("algo-1", "algo-2", "algo-3")
    bench.all_ready()
    bench.ended(1, 0, over=True)
    bench.ended(0, 1)
    # It took SIGTERM, and exited with 0.
    bench.ended(2, 0)
    bench.advance(60)
    assert [order["text"] for order in bench.orders if order["kind"] == "say"] == [
        "rank 1 had ended with exit code 0 when rank 0 failed"
    ]
    assert bench.verdict == (1, 0)
