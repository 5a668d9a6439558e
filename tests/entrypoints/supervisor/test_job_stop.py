"""A stop: hosts say how many calls of `should_stop` their ranks have made, and all ranks stop at one call."""

from __future__ import annotations

from tests.entrypoints.supervisor.test_coordinator import Bench

from herringbone_contract.failure_text import parse_failure
from herringbone_entry.supervisor.job_stop import ASK_SECONDS


def test_ranks_that_ask_stop_at_one_call_and_the_job_has_stopped_although_they_exit_with_0() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.all_ready()
    bench.stop("algo-2", algo1=7, algo2=9)
    assert bench.orders[-2:] == [{"kind": "ask", "why": "SIGTERM"}, {"kind": "stop", "call": 10}]
    bench.ended(0, 0, obeyed=True)
    bench.ended(1, 0, obeyed=True)
    assert bench.orders[-1] == {"kind": "finish", "code": 143, "failure": None}


def test_ranks_get_sigterm_where_a_host_does_not_say_whether_its_ranks_ask() -> None:
    """Its ranks may have made the chosen call already, and would run on while the others stop."""
    bench = Bench("algo-1", "algo-2")
    bench.all_ready()
    bench.report("algo-1", "stop", why="SIGTERM", leaving=False)
    bench.report("algo-1", "asked", most=7)
    assert bench.kinds == ["start", "ask"]
    bench.advance(ASK_SECONDS)
    bench.report("algo-2", "asked", most=9)
    assert bench.orders[2:] == [{"kind": "stop", "call": 0}]


def test_a_job_whose_platform_takes_a_host_away_names_the_host() -> None:
    bench = Bench("algo-1", "algo-2")
    bench.all_ready()
    bench.report("algo-2", "stop", why="/run/drain is there", leaving=True)
    bench.ended(0, 143)
    bench.ended(1, 143)
    failure = parse_failure(bench.orders[-1]["failure"])
    assert (failure.host, failure.fault, failure.exit_code) == ("algo-2", "drain", 143)
