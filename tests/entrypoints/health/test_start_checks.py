"""The coordinator's checks before the ranks start: reports of hosts in, a start or a failure out."""

from __future__ import annotations

import pytest
from tests.entrypoints.health.test_preflight import GOOD
from tests.entrypoints.supervisor.test_coordinator import Bench

from herringbone_contract.failure_text import parse_failure
from herringbone_entry.supervisor.start_checks import LINKS_SECONDS, LOCAL_SECONDS

HOSTS = ("algo-1", "algo-2", "algo-3")
REPORT = {"memory": [8e9, 16e9], "disks": {"/m": ""}, "backend": "gloo", "port": 7000, "gpus": 0}
FULL = {**REPORT, "disks": {"/m": "No space left on device"}}


def looked(infra_check: bool | None = None, *machines: str, policies: dict[str, str] | None = None) -> Bench:
    """Return a bench whose hosts, on these machines, have reported their facts."""
    bench = Bench(*HOSTS, across=True, infra_check=infra_check, policies=policies or {})
    bench.all_ready()
    for host, machine in zip(HOSTS, machines or "abc", strict=True):
        bench.report(host, "checked", ask="look", report={**GOOD, "wall": 0.0, "machine": machine})
    return bench


def examined(bench: Bench, **reports: dict) -> Bench:
    """Have the hosts answer; `reports` are by host, without its hyphen."""
    for host in HOSTS:
        bench.report(host, "checked", ask="local", report=reports.get(host.replace("-", ""), REPORT))
    return bench


def said(bench: Bench) -> list[str]:
    return [line for order in bench.orders if order["kind"] == "say" for line in order["text"].splitlines()]


def test_hosts_on_several_machines_are_examined_and_then_sum_with_each_other() -> None:
    bench = looked()
    assert bench.orders[-1] == {"kind": "check", "host": None, "request": {"ask": "local"}}
    examined(bench)
    links = {"ask": "links", "hosts": list(HOSTS), "port": 7000, "backend": "gloo", "limit": 12.0}
    assert bench.orders[-1] == {"kind": "check", "host": None, "request": {**links, "address": "10.0.0.1"}}
    for host in HOSTS:
        bench.report(host, "checked", ask="links", report={"seconds": 0.2, "bytes": 25 << 20, "is_sum": True})
    assert bench.kinds[-3:] == ["say", "check", "start"]
    assert bench.orders[-2] == {"kind": "check", "host": None, "request": {"ask": "end"}}
    assert said(bench)[-1] == "health: algo-3: 8.0 of 16.0 GB of memory are free; all-reduce of 25 MiB in 0.2 s"


@pytest.mark.parametrize(
    ("infra_check", "machines", "is_examined"),
    [(None, "abc", True), (None, "aaa", False), (True, "aaa", True), (False, "abc", False)],
)
def test_hosts_on_one_machine_are_examined_where_the_user_says_so(infra_check, machines, is_examined) -> None:
    assert (looked(infra_check, *machines).kinds[-1] == "check") == is_examined


def test_processes_of_one_machine_are_examined_where_the_user_says_so() -> None:
    # One of them is examined: it speaks for the machine.
    bench = Bench("algo-1", "algo-2", infra_check=True)
    bench.all_ready()
    assert bench.orders == [{"kind": "check", "host": "algo-1", "request": {"ask": "local"}}]
    bench.report("algo-1", "checked", ask="local", report=REPORT)
    assert bench.kinds == ["check", "say", "check", "start"]


def test_an_unfit_host_ends_the_attempt_before_the_ranks_start() -> None:
    bench = examined(looked(), algo2=FULL)
    failure = parse_failure(bench.orders[-1]["failure"])
    assert (failure.host, failure.fault, failure.rank) == ("algo-2", "unhealthy_host", None)
    assert failure.message == "unhealthy_host: algo-2: No space left on device: /m"
    assert "start" not in bench.kinds
    assert bench.orders[-2]["event"]["why"] == "algo-2: No space left on device: /m"


def test_an_unfit_host_is_only_named_where_the_user_says_so() -> None:
    bench = examined(looked(policies={"unhealthy_host": "report"}), algo2=FULL)
    # It takes part in the job, so its links count, too.
    assert bench.orders[-1]["request"]["hosts"] == list(HOSTS)
    bench.advance(LINKS_SECONDS)
    assert bench.kinds[-1] == "start"
    assert "warning: algo-2: No space left on device: /m" in said(bench)


def test_hosts_that_do_not_answer_are_named_and_the_job_starts() -> None:
    bench = looked()
    bench.report("algo-1", "checked", ask="local", report=REPORT)
    bench.report("algo-3", "checked", ask="local", report=REPORT)
    bench.advance(LOCAL_SECONDS)
    assert bench.orders[-1]["request"]["hosts"] == ["algo-1", "algo-3"]
    bench.report("algo-1", "checked", ask="links", report={"apart": "RuntimeError: timed out"})
    # It answers the first request now.
    bench.report("algo-2", "checked", ask="local", report=REPORT)
    bench.advance(LINKS_SECONDS)
    assert bench.kinds[-1] == "start"
    lines = [line for line in said(bench) if line.startswith("health")]
    assert [line.partition("not examined: ")[2] for line in lines] == [
        "",
        "",
        "devices and memory: no answer within 20 s",
    ]
    warnings = [line for line in said(bench) if line.startswith("warning")]
    assert [line.partition("as a script will: ")[2] for line in warnings] == [
        "RuntimeError: timed out; is a firewall in between?",
        "no answer within 15 s; is a firewall in between?",
    ]


@pytest.mark.parametrize(("able", "which"), [(("algo-3",), "algo-3 alone"), ((), "no host")])
def test_links_that_nobody_could_measure_are_told(able, which) -> None:
    bench = looked()
    for host in able:
        bench.report(host, "checked", ask="local", report=REPORT)
    bench.advance(LOCAL_SECONDS)
    assert bench.kinds[-1] == "start"
    assert said(bench)[-1] == f"health: links between hosts were not measured: torch answered on {which}"


def test_a_report_that_makes_no_sense_stops_no_job() -> None:
    bench = examined(looked(), algo1={"memory": "much"})
    assert bench.kinds[-1] == "start"
    assert said(bench)[-1].startswith("health: not known: ")


def test_a_stop_or_a_lost_host_during_the_examination_is_what_it_is() -> None:
    bench = looked()
    bench.stop("algo-1")
    assert bench.orders[-1]["code"] == 143
    bench.advance(LOCAL_SECONDS)
    assert bench.kinds[-1] == "finish"
    bench = looked()
    bench.coordinator.lost("algo-2")
    bench.advance(LOCAL_SECONDS)
    assert parse_failure(bench.orders[-1]["failure"]).lost_host == "algo-2"
