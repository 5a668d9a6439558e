from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import advisor
from herringbone_parallel.core.sums.advisor import Advice, advise, evenly
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.simulate import Sum

SLOW = HostLink(23.8e6, latency_s=6e-4)


def ask(workers: int, helpers: int, megabytes: float = 25, backward_s: float = 0.2, link: HostLink = SLOW) -> Advice:
    cluster = Cluster(workers, link, helpers=helpers)
    size = int(megabytes * 1_000_000)
    return advise(cluster, evenly(size, backward_s), forward_s=backward_s / 2, backward_s=backward_s)


def test_the_usage() -> None:
    assert doctest.testmod(advisor) == (0, 7)


def test_helpers_where_the_network_decides() -> None:
    advice = ask(4, 4)
    assert advice.best == "helpers"
    assert list(advice.by_scheme) == ["sharded", "ring", "tree", "helpers"]
    assert advice.by_scheme["ring"].sent_bytes == 37_500_000
    assert advice.by_scheme["helpers"].sent_bytes == 25_000_000
    assert advice.by_scheme["ring"].sum_s / advice.by_scheme["helpers"].sum_s == pytest.approx(1.5, rel=0.01)
    assert advice.why[-1] == "Helpers make a step 31.1% shorter than it is with none."


def test_the_text_is_a_table_and_the_reasons() -> None:
    assert str(ask(4, 4)).splitlines() == [
        "scheme                   sum      step  efficiency  busiest host sends",
        "sharded               1.58 s    1.68 s        18%             37.5 MB",
        "ring                  1.58 s    1.69 s        18%             37.5 MB",
        "tree                  2.10 s    2.21 s        14%             50.0 MB",
        "helpers               1.06 s    1.16 s        26%             25.0 MB  <- best",
        "- helpers: a step takes 1.16 s, 300.0 ms of it to compute; the busiest host sends 1.00 x the gradients.",
        "- Helpers make a step 31.1% shorter than it is with none.",
    ]


def test_some_helpers_share_with_the_workers() -> None:
    advice = ask(4, 2)
    assert advice.best == "mixed"
    assert advice.why[-1] == (
        "Than with no helper, a step is 18.2% shorter with 2 helpers, 31.1% shorter with 4 (1.16 s)."
    )


def test_without_helpers_it_says_what_they_would_bring() -> None:
    advice = ask(4, 0)
    assert advice.best == "sharded"
    assert advice.why[-1] == "Than with no helper, a step is 31.1% shorter with 4 (1.16 s)."


def test_too_few_helpers_are_not_worth_their_price() -> None:
    advice = ask(64, 2)
    assert advice.best == "sharded"
    assert "2 helpers for 64 workers: too few." in advice.why[-1]


def test_more_helpers_than_workers_are_no_error() -> None:
    advice = ask(4, 9)
    assert advice.best == "helpers"
    assert advice.why[1] == "9 helpers for 4 workers: 4 take all that the workers can send, 5 more gain nothing."


def test_two_workers_gain_no_bytes() -> None:
    advice = ask(2, 2)
    assert advice.best == "sharded"
    assert "helpers save bytes from three on" in advice.why[-1]


def test_one_host_has_nothing_to_send() -> None:
    advice = ask(1, 1)
    assert (advice.best, advice.by_scheme["sharded"].sent_bytes) == ("sharded", 0)
    assert advice.by_scheme["sharded"].step_s == pytest.approx(0.3)
    assert advice.why == ("One host: nothing crosses the network, and 1 helper would have nothing to sum.",)


def test_compute_bound_models_need_no_helpers() -> None:
    advice = ask(4, 4, backward_s=4.0)
    assert advice.best == "sharded"
    assert advice.why[-1].startswith("Compute-bound:")


def test_little_to_sum_is_a_matter_of_latency() -> None:
    advice = ask(4, 4, megabytes=0.004, backward_s=0.001)
    assert advice.best == "sharded"
    assert advice.why[-1].startswith("Latency-bound:")


def test_a_large_gradient_that_is_final_last_is_not_hidden() -> None:
    """The token embedding of a transformer: used first, so its gradient comes last."""
    late = [*evenly(20_000_000, 3.9), Sum(5_000_000, 4.0)]
    spread = ask(4, 4, backward_s=4.0)
    advice = advise(Cluster(4, SLOW, helpers=4), late, forward_s=2.0, backward_s=4.0)
    assert advice.by_scheme["helpers"].step_s - 6.0 == pytest.approx(5e6 / 23.8e6, rel=0.05)
    assert spread.by_scheme["helpers"].step_s - 6.0 < 0.03


def test_several_ranks_on_a_host_sum_inside_first() -> None:
    cluster = Cluster(8, HostLink(1e9, 5e-5), ranks_per_host=8, inside=HostLink(1e10, 1e-5), helpers=8)
    advice = advise(cluster, evenly(100_000_000, 0.04), forward_s=0.02, backward_s=0.04)
    steps = {name: one.step_s for name, one in advice.by_scheme.items()}
    assert steps["helpers"] < steps["sharded"] < steps["ring"] < steps["ring of all ranks"]


@given(
    workers=st.integers(1, 9),
    helpers=st.integers(0, 10),
    size=st.integers(1, 3_000_000),
    backward_s=st.floats(1e-4, 1),
)
def test_there_is_always_advice_and_the_best_is_within_a_trifle_of_the_fastest(
    workers: int, helpers: int, size: int, backward_s: float
) -> None:
    advice = advise(
        Cluster(workers, SLOW, helpers=helpers), evenly(size, backward_s), forward_s=0, backward_s=backward_s
    )
    assert advice.by_scheme[advice.best].step_s <= 1.03 * min(one.step_s for one in advice.by_scheme.values())
    assert all(one.step_s >= backward_s for one in advice.by_scheme.values())
    assert advice.why


def test_nothing_to_sum_is_refused() -> None:
    with pytest.raises(ParallelError, match="0 bytes of gradients"):
        ask(4, 4, megabytes=0)
