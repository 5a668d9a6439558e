"""The findings about a job's sums: their kinds, their figures and the text of a job's log."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import advice
from herringbone_parallel.core.sums.advice import Advice, Kind, advise, find, render
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.prediction import Predictor, evenly, gain

# 200 Mbit/s.
SLOW = HostLink(23.8e6, latency_s=6e-4)
FAST = HostLink(11e9, latency_s=2e-5)


def text_of(workers: int, helpers: int, *, link: HostLink = SLOW, megabytes: float = 25, halves: bool = False) -> str:
    predictor = Predictor(evenly(int(megabytes * 1e6), 0.2), forward_s=0.1, backward_s=0.2)
    return "\n".join(render(find(predictor, Cluster(workers, link, helpers=helpers), halves=halves)))


def ask(workers: int, helpers: int, megabytes: float = 25, backward_s: float = 0.2, link: HostLink = SLOW) -> Advice:
    cluster = Cluster(workers, link, helpers=helpers)
    size = int(megabytes * 1_000_000)
    return advise(cluster, evenly(size, backward_s), forward_s=backward_s / 2, backward_s=backward_s)


def kinds(answer: Advice) -> list[Kind]:
    return [finding.kind for finding in answer.findings]


def test_doctests() -> None:
    assert doctest.testmod(advice) == (0, 7)


def test_faster_settings_are_named_the_best_first() -> None:
    assert text_of(4, 0, halves=True).splitlines() == [
        "25.0 MB of gradients are summed by the 4 hosts: a step takes about 1.68 s, 1.38 s of it waiting for sums.",
        'It would take 891.5 ms (47% less) with 16 bits on the wire ("wire": "bf16" of dataparallel); 1.16 s (31% less)'
        ' with 4 helpers ("helpers" of dataparallel).',
    ]


def test_more_helpers_are_recommended_where_there_are_few() -> None:
    lines = text_of(4, 2).splitlines()
    assert lines[0].startswith("25.0 MB of gradients are summed by 2 helpers and the 4 hosts: ")
    assert lines[1] == 'It would take 1.16 s (16% less) with 4 helpers ("helpers" of dataparallel).'


def test_the_limit_is_named_where_nothing_is_faster() -> None:
    assert text_of(4, 4).splitlines() == [
        "25.0 MB of gradients are summed by 4 helpers: a step takes about 1.16 s, 857.7 ms of it waiting for sums.",
        "No setting would save 3% or more: hosts send their gradients once, and no scheme sends less.",
    ]
    assert text_of(2, 0).endswith("two hosts send all gradients once, with helpers or without.")
    assert text_of(4, 0, link=FAST).endswith(
        "No setting would save 3% or more: communication is hidden behind the backward pass."
    )


def test_helpers_that_gain_nothing_are_a_finding_and_no_error() -> None:
    assert text_of(4, 9).endswith(" 4 of 9 helpers take all that 4 hosts can send; 5 more gain nothing.")
    assert text_of(4, 4, link=FAST).endswith(
        " Without 4 helpers it would take 300.1 ms: they are not worth their hosts."
    )


def test_latency_is_the_limit_of_small_gradients() -> None:
    text = text_of(4, 0, megabytes=0.02, link=HostLink(23.8e6, latency_s=0.05))
    assert text.startswith("20.0 KB of gradients")
    assert "there is little to sum" in text


def test_one_host_has_no_network_to_advise_about() -> None:
    assert text_of(1, 0) == "One host: gradients are summed in its memory, and nothing crosses a network."
    assert text_of(1, 2).endswith("nothing crosses a network: 2 helpers would have nothing to sum.")


def test_str_is_the_table_and_the_findings() -> None:
    assert str(ask(4, 4)).splitlines() == [
        "scheme                   sum      step  efficiency  busiest host sends",
        "sharded               1.58 s    1.68 s        18%             37.5 MB",
        "ring                  1.58 s    1.69 s        18%             37.5 MB",
        "tree                  2.10 s    2.21 s        14%             50.0 MB",
        "helpers               1.06 s    1.16 s        26%             25.0 MB  <- best",
        "25.0 MB of gradients are summed by 4 helpers: a step takes about 1.16 s, 857.7 ms of it waiting for sums.",
        "No setting would save 3% or more: hosts send their gradients once, and no scheme sends less.",
    ]


def test_helpers_win_where_the_network_decides() -> None:
    answer = ask(4, 4)
    assert answer.best == "helpers"
    assert kinds(answer) == [Kind.CURRENT, Kind.BANDWIDTH_BOUND]
    assert gain(answer.by_scheme["sharded"], answer.by_scheme["helpers"]) == pytest.approx(0.311, abs=5e-4)


def test_a_few_helpers_share_the_sums_with_the_workers() -> None:
    answer = ask(4, 2)
    assert answer.best == "mixed"
    assert kinds(answer) == [Kind.CURRENT, Kind.FASTER]
    assert gain(answer.by_scheme["sharded"], answer.by_scheme["mixed"]) == pytest.approx(0.182, abs=5e-4)
    # Than with no helper, a step is 31.1 % shorter with 4.
    assert answer.findings[1].step_s / answer.by_scheme["sharded"].step_s == pytest.approx(1 - 0.311, abs=5e-4)
    assert answer.findings[1].step_s == pytest.approx(1.16, abs=5e-3)


def test_without_helpers_advice_predicts_their_gain() -> None:
    answer = ask(4, 0)
    assert answer.best == "sharded"
    assert kinds(answer) == [Kind.CURRENT, Kind.FASTER]
    assert answer.findings[1].gain == pytest.approx(0.311, abs=5e-4)
    assert answer.findings[1].step_s == pytest.approx(1.16, abs=5e-3)


def test_too_few_helpers_are_not_worth_their_hosts() -> None:
    answer = ask(64, 2)
    assert answer.best == "sharded"
    assert kinds(answer) == [Kind.CURRENT, Kind.FASTER, Kind.USELESS_HELPERS]
    assert "with 64 helpers" in answer.findings[1].text


def test_more_helpers_than_workers_are_no_error() -> None:
    answer = ask(4, 9)
    assert answer.best == "helpers"
    assert kinds(answer)[-1] is Kind.SURPLUS_HELPERS


def test_two_workers_gain_no_bytes() -> None:
    answer = ask(2, 2)
    assert answer.best == "sharded"
    assert kinds(answer)[1:] == [Kind.TWO_HOSTS, Kind.USELESS_HELPERS]


def test_one_host_has_nothing_to_send() -> None:
    answer = ask(1, 1)
    assert (answer.best, answer.by_scheme["sharded"].sent_bytes) == ("sharded", 0)
    assert answer.by_scheme["sharded"].step_s == pytest.approx(0.3)
    assert kinds(answer) == [Kind.ONE_HOST]
    assert answer.findings[0].text.endswith("1 helper would have nothing to sum.")


def test_compute_bound_models_need_no_helpers() -> None:
    answer = ask(4, 4, backward_s=4.0)
    assert answer.best == "sharded"
    assert kinds(answer)[1:] == [Kind.COMPUTE_BOUND, Kind.USELESS_HELPERS]


def test_small_gradients_need_no_helpers() -> None:
    answer = ask(4, 4, megabytes=0.004, backward_s=0.001)
    assert answer.best == "sharded"
    assert kinds(answer)[1:] == [Kind.LATENCY_BOUND, Kind.USELESS_HELPERS]


@given(
    workers=st.integers(1, 9),
    helpers=st.integers(0, 10),
    size=st.integers(1, 3_000_000),
    backward_s=st.floats(1e-4, 1),
)
def test_there_is_always_advice_and_the_best_is_close_to_the_fastest(
    workers: int, helpers: int, size: int, backward_s: float
) -> None:
    answer = advise(
        Cluster(workers, SLOW, helpers=helpers), evenly(size, backward_s), forward_s=0, backward_s=backward_s
    )
    fastest_s = min(prediction.step_s for prediction in answer.by_scheme.values())
    assert answer.by_scheme[answer.best].step_s <= 1.03 * fastest_s
    assert all(prediction.step_s >= backward_s for prediction in answer.by_scheme.values())
    assert render(answer.findings)


def test_nothing_to_sum_is_refused() -> None:
    with pytest.raises(ParallelError, match="0 bytes of gradients"):
        ask(4, 4, megabytes=0)
