from __future__ import annotations

import doctest

from herringbone_parallel.core.sums import advice
from herringbone_parallel.core.sums.advisor import evenly
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink

# 200 Mbit/s.
SLOW = HostLink(23.8e6, latency_s=6e-4)
FAST = HostLink(11e9, latency_s=2e-5)


def said(workers: int, helpers: int, *, link: HostLink = SLOW, megabytes: float = 25, halves: bool = False) -> str:
    return "\n".join(
        advice.spoken_advice(
            Cluster(workers, link, helpers=helpers),
            evenly(int(megabytes * 1e6), 0.2),
            forward_s=0.1,
            backward_s=0.2,
            halves=halves,
        )
    )


def test_the_usage() -> None:
    assert doctest.testmod(advice) == (0, 3)


def test_what_would_be_faster_is_named_with_its_setting_the_best_first() -> None:
    assert said(4, 0, halves=True).splitlines() == [
        "25.0 MB of gradients are summed by the 4 hosts: a step takes about 1.68 s, 1.38 s of it waiting for sums.",
        'It would take 891.5 ms (47% less) with 16 bits on the wire ("wire": "bf16" of dataparallel); 1.16 s (31% less)'
        ' with 4 helpers ("helpers" of dataparallel).',
    ]


def test_some_helpers_are_told_of_more() -> None:
    assert said(4, 2).splitlines()[0].startswith("25.0 MB of gradients are summed by 2 helpers and the 4 hosts: ")
    assert said(4, 2).splitlines()[1] == 'It would take 1.16 s (16% less) with 4 helpers ("helpers" of dataparallel).'


def test_where_nothing_is_faster_it_says_why() -> None:
    assert said(4, 4).splitlines() == [
        "25.0 MB of gradients are summed by 4 helpers: a step takes about 1.16 s, 857.7 ms of it waiting for sums.",
        "Nothing makes it 3% shorter: hosts send their gradients once, and no scheme sends less.",
    ]
    assert said(2, 0).endswith("two hosts send all gradients once, with helpers or without.")
    assert said(4, 0, link=FAST).endswith("Nothing makes it 3% shorter: the sums hide behind the backward.")


def test_helpers_that_gain_nothing_are_advice_and_no_error() -> None:
    assert said(4, 9).endswith(" 4 of 9 helpers take all that 4 hosts can send; 5 more gain nothing.")
    assert said(4, 4, link=FAST).endswith(" Without 4 helpers it would take 300.1 ms: they are not worth their hosts.")


def test_little_to_sum_is_a_matter_of_latency() -> None:
    text = said(4, 0, megabytes=0.02, link=HostLink(23.8e6, latency_s=0.05))
    assert text.startswith("20.0 KB of gradients")
    assert "there is little to sum" in text


def test_one_host_has_no_network_to_advise_about() -> None:
    assert said(1, 0) == "One host: gradients are summed in its memory, and nothing crosses a network."
    assert said(1, 2).endswith("nothing crosses a network: 2 helpers would have nothing to sum.")
