"""Checks before machines start together: the facts of each host, and the first host's table of them."""

from __future__ import annotations

import pytest
from tests.entrypoints.supervisor.test_coordinator import Bench

from herringbone_entry.health.preflight import PATIENCE_SECONDS, listen_address, master_address, report

HOSTS = ("algo-1", "algo-2")
GOOD = {
    "group": "train",
    "cpus": 8,
    "machine": "m",
    "gpus": 4,
    "free_bytes": 41_000_000_000,
    "interface": "eth0",
    "named_interface": None,
    "address": "10.0.0.1",
    "unknown": [],
    "known": {},
}


def test_p28_the_table_of_healthy_hosts() -> None:
    facts = {"algo-1": GOOD, "algo-2": {**GOOD, "address": "10.0.0.2"}}
    assert report(HOSTS, facts, {"algo-1": 0.0, "algo-2": -0.01}) == [
        "host    address   interface  CPUs  GPUs  free disk  clock",
        "algo-1  10.0.0.1  eth0       8     4     41.0 GB    +0.0 s",
        "algo-2  10.0.0.2  eth0       8     4     41.0 GB    +0.0 s",
    ]


@pytest.mark.parametrize(
    ("bad", "warning"),
    [
        (
            {"unknown": ["algo-1", "algo-3"]},
            "algo-2 finds no address of algo-3: no name server knows the name, and the host has reported no address; "
            "ranks that call it will fail",
        ),
        (
            {"named_interface": "ens5"},
            "algo-2 has no network interface 'ens5', which the job names; it takes eth0",
        ),
        ({"gpus": 3}, "hosts of group train differ in GPUs: 3 on algo-2, 4 on algo-1"),
    ],
    ids=["names", "interface", "GPUs"],
)
def test_p28_each_fault_is_a_warning_that_names_the_host(bad, warning: str) -> None:
    lines = report(HOSTS, {"algo-1": GOOD, "algo-2": {**GOOD, **bad}}, {"algo-1": 0.0, "algo-2": 0.0})
    assert lines[3:] == [f"warning: {warning}"]


def test_groups_may_differ_in_gpus() -> None:
    facts = {"algo-1": GOOD, "algo-2": {**GOOD, "gpus": 0, "group": "data"}}
    assert len(report(HOSTS, facts, {"algo-1": 0.0, "algo-2": 0.0})) == 3


def test_a_host_that_does_not_answer_is_in_the_table() -> None:
    assert report(HOSTS, {"algo-1": GOOD}, {"algo-1": 0.0})[2:] == [
        "algo-2  ?         ?          ?     ?     ?          ?",
        "warning: algo-2 has not answered within 1.5 s; is its name server slow?",
    ]


def test_ranks_use_the_name_of_rank_0s_host_if_every_host_knows_it() -> None:
    unsure = {**GOOD, "unknown": ["algo-1"]}
    assert master_address("algo-1", {"algo-1": GOOD, "algo-2": GOOD}) == "algo-1"
    assert master_address("algo-1", {"algo-1": GOOD, "algo-2": unsure}) == "10.0.0.1"
    assert master_address("algo-1", {"algo-2": unsure}) == "algo-1"


def checked_bench() -> Bench:
    bench = Bench(*HOSTS, across=True)
    bench.all_ready()
    assert bench.orders == [{"kind": "check", "host": None, "request": {"ask": "look", "names": ["algo-1", "algo-1"]}}]
    bench.report("algo-1", "checked", ask="look", report={**GOOD, "wall": 1000.0})
    return bench


def test_the_job_starts_when_all_have_been_checked() -> None:
    bench = checked_bench()
    bench.now = 0.5
    bench.report("algo-2", "checked", ask="look", report={**GOOD, "wall": 1003.5, "unknown": ["algo-1"]})
    assert bench.kinds == ["check", "say", "say", "start"]
    assert [order["host"] for order in bench.orders[1:3]] == ["algo-1"] * 2
    assert bench.orders[2]["text"] == "warning: algo-2: its clock is +3.0 s off: logs will seem out of order"
    assert bench.orders[3]["meeting"]["address"] == "10.0.0.1"


def test_the_job_waits_for_a_slow_host_only_so_long() -> None:
    bench = checked_bench()
    bench.advance(PATIENCE_SECONDS)
    assert bench.kinds == ["check", "say", "start"]
    bench.report("algo-2", "checked", ask="look", report={**GOOD, "wall": 1000.0})
    assert bench.kinds == ["check", "say", "start"]


def test_a_stop_during_the_check_is_a_stop() -> None:
    bench = checked_bench()
    bench.stop("algo-1")
    assert bench.orders[-1]["code"] == 143
    bench.advance(PATIENCE_SECONDS)
    assert bench.kinds == ["check", "finish"]


def test_p28_machines_without_each_others_names_still_train(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write("import os; print(os.environ['MASTER_ADDR'])", sagemaker_torch_distributed_enabled=True)
    ended = job.run()
    assert ended["algo-1"].rank_lines == ["[algo-1:0] 127.0.0.1"]
    assert ended["algo-2"].rank_lines == ["[algo-2:1] 127.0.0.1"]
    assert not any("warning" in line for line in ended["algo-1"].lines)
    assert ended["algo-2"].lines == ended["algo-2"].rank_lines


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([{"algo-1": "10.0.0.1"}, {"algo-1": "10.0.0.1"}], "10.0.0.1"),
        # One of them gets the address in place of the name.
        ([{"algo-1": "10.0.0.1"}, {}], "10.0.0.1"),
        # A second network: the store must listen at both addresses.
        ([{"algo-1": "10.0.0.1"}, {"algo-1": "192.168.0.1"}], ""),
        # algo-3 has not answered.
        ([{"algo-1": "10.0.0.1"}], ""),
    ],
)
def test_rank_0_listens_at_one_address_if_all_others_call_there(known, expected: str) -> None:
    facts = {f"algo-{number}": {**GOOD, "known": names} for number, names in enumerate(known, 2)}
    facts["algo-1"] = {**GOOD, "address": "10.0.0.1"}
    assert listen_address("algo-1", ["algo-2", "algo-3"], facts) == expected
    assert listen_address("algo-1", ["algo-2", "algo-3"], {**facts, "algo-1": {**GOOD, "address": None}}) == ""
