"""Idle hosts and idle jobs, by literal samples and clocks."""

import pytest

from herringbone_entry.watch.idleness import HostIdleness, JobIdleness


def sample(seconds=10.0, **members):
    return {"kind": "sample", "t": 1.0, "seconds": seconds, **members}


def gpus(*uses):
    return [{"index": index, "use": use} for index, use in enumerate(uses)]


@pytest.mark.parametrize(
    ("members", "unused"),
    [
        ({"gpus": gpus(0.0, 0.04), "cpu": 30.0}, True),
        # One of eight is used.
        ({"gpus": gpus(*[0.0] * 7, 0.06), "cpu": 0.0}, False),
        # A device that gives no reading, and none at all: the processors count.
        ({"gpus": gpus(None), "cpu": 1.0}, False),
        ({"gpus": gpus(None), "cpu": 0.0}, True),
        ({"gpus": [], "cpu": 0.04}, True),
        ({"cpu": 0.06}, False),
        ({"cpu": 0.06, "ranks": {"0": {}, "1": {}}}, True),
        # Nobody knows.
        ({}, False),
    ],
)
def test_a_sample_is_of_an_unused_host(members, unused):
    host = HostIdleness()
    assert host.take(sample(**members))[0] == (10.0 if unused else 0.0)


def test_idleness_adds_up_and_ends_with_one_sample_of_use():
    host = HostIdleness()
    taken = [host.take(sample(seconds, cpu=cpu))[0] for seconds, cpu in ((1, 0), (720, 0), (1, 3.0), (1, 0))]
    assert taken == [1, 721, 0, 1]


def job(*hosts, limit=600.0):
    watched = JobIdleness(hosts, limit)
    return lambda host, seconds, now, covers=10.0: watched.take(host, seconds, covers, now)


def test_a_job_is_idle_when_all_of_its_hosts_are():
    take = job("algo-1", "algo-2")
    assert take("algo-1", 900.0, now=0.0) is None
    assert take("algo-2", 100.0, now=0.0) is None
    # At half of the limit, at the limit, and no more.
    assert take("algo-2", 310.0, now=10.0) == 310.0
    assert take("algo-2", 400.0, now=20.0) is None
    take("algo-1", 1500.0, now=30.0)
    assert take("algo-2", 600.0, now=30.0) == 600.0
    assert take("algo-2", 700.0, now=40.0) is None


def test_one_busy_host_keeps_the_job():
    """A long evaluation on the first host, while the others wait in a barrier."""
    take = job("algo-1", "algo-2")
    news = [
        take(host, seconds, now) for now in range(0, 3600, 10) for host, seconds in (("algo-1", 0.0), ("algo-2", now))
    ]
    assert set(news) == {None}


def test_use_after_a_notice_is_told_and_the_count_begins_again():
    take = job("algo-1")
    assert [take("algo-1", seconds, now=0.0) for seconds in (300.0, 310.0, 0.0, 10.0, 300.0)] == [
        300.0,
        None,
        0.0,
        None,
        300.0,
    ]


def test_a_host_whose_observer_has_ended_is_not_known_to_be_idle():
    take = job("algo-1", "algo-2")
    take("algo-1", 290.0, now=0.0)
    assert take("algo-2", 900.0, now=59.0) is None
    assert take("algo-1", 350.0, now=60.0) == 350.0
    # The first one is silent now, and was idle when it was heard last.
    assert take("algo-2", 1500.0, now=600.0) == 0.0
    # Rare samples are no silence.
    take = job("algo-1", "algo-2")
    take("algo-1", 1400.0, now=0.0, covers=720.0)
    assert take("algo-2", 1400.0, now=700.0, covers=720.0) == 1400.0


def test_a_host_without_ranks_has_no_say():
    take = job("algo-1")
    assert take("algo-9", 0.0, now=0.0) is None
    assert take("algo-1", 300.0, now=0.0) == 300.0
