"""The expected loss by faults against published figures, a simulation and its limits; the bounds of a forecast."""

import math

import pytest
from tests.campaigns.simulated_faults import Job, random_faults

from herringbone.prediction.faults.model import Tier, best_interval, expected, useful_part, with_best_intervals
from herringbone.prediction.faults.spread import ettr_bounds, poisson_part

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def disk(**members):
    return Tier(**{"name": "disk", "blocked": 60.0, "save": 60.0, "load": 30.0, "interval": HOUR, **members})


def daly(cost, mtbf):
    """Daly's equation 37, as published."""
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost if part < 1 else mtbf


def simulated(tiers, rate, down, faults):
    seconds = faults / rate
    return Job(tiers, down).run(random_faults(tiers, rate, seed=7), seconds) / seconds


@pytest.mark.parametrize(("mtbf", "published"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_best_interval_is_that_of_dalys_figures_3_to_5(mtbf, published):
    best = best_interval(disk(blocked=5 * MINUTE, save=5 * MINUTE), 1 / mtbf)
    assert best / MINUTE == pytest.approx(published, rel=0.01)
    assert best == pytest.approx(daly(5 * MINUTE, mtbf), rel=0.004)


def test_the_best_interval_is_youngs_where_faults_are_rare():
    for mtbf in (1e6, 1e9, 1e12):
        assert best_interval(disk(), 1 / mtbf) == pytest.approx(
            math.sqrt(2 * 60 * mtbf), rel=1.1 * math.sqrt(60 / mtbf)
        )


def test_no_interval_is_better_than_the_best_one():
    for tier in (disk(), disk(blocked=1.0, save=500.0), disk(blocked=0.0), disk(save=5000.0, blocked=1.0)):
        for mtbf in (100.0, 3000.0, DAY):
            (best,) = with_best_intervals([tier], 1 / mtbf, 100.0)
            most = useful_part([best], 1 / mtbf, 100.0)
            for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
                other = disk(save=tier.save, blocked=tier.blocked, interval=best.interval * factor)
                # Where saves cost nothing, the best interval is none, and the shortest is taken.
                assert useful_part([other], 1 / mtbf, 100.0) <= most * (1 + 1e-5)


def test_intervals_are_whole_steps_and_at_least_one():
    assert with_best_intervals([disk()], 1 / DAY, 300.0, step=7.0)[0].interval % 7.0 == 0
    assert with_best_intervals([disk()], 1 / DAY, 300.0, step=1e6)[0].interval == 1e6


# Faults so rare and so frequent, saves that wait for the one before, saves in the background, and two tiers.
@pytest.mark.parametrize(
    ("tiers", "mtbf", "down", "tolerance"),
    [
        ([disk()], DAY, 300.0, 0.001),
        ([disk()], 3000.0, 300.0, 0.01),
        ([disk(blocked=5.0, interval=600.0)], 3000.0, 300.0, 0.01),
        ([disk(blocked=5.0, interval=600.0)], 600.0, 100.0, 0.01),
        ([disk(blocked=5.0, save=160.0, interval=60.0)], 3000.0, 100.0, 0.01),
        (
            [
                disk(blocked=0.5, save=2.0, load=1.0, interval=50.0, share=0.9),
                disk(blocked=20.0, save=120.0, load=60.0, interval=2000.0, share=0.1),
            ],
            3000.0,
            30.0,
            0.01,
        ),
    ],
)
def test_the_expectation_is_the_mean_of_many_simulated_faults(tiers, mtbf, down, tolerance):
    measured = simulated(tiers, 1 / mtbf, down, faults=10_000 // len(tiers) ** 2)
    assert expected(tiers, 1 / mtbf, down).ettr == pytest.approx(measured, rel=tolerance)


def test_the_expectation_is_dalys_equation_without_a_background():
    rate, stop = 1 / DAY, 330.0
    wall = math.exp(rate * stop) * (math.exp(rate * (HOUR + 60.0)) - 1) / rate
    assert useful_part([disk()], rate, 300.0) == pytest.approx(HOUR / wall, rel=1e-12)


def test_the_parts_are_all_of_the_time():
    loss = expected([disk(blocked=10.0)], 1 / (2 * HOUR), 300.0)
    assert loss.ettr + loss.saves + loss.redone + loss.down == pytest.approx(1.0)
    assert min(loss.ettr, loss.saves, loss.redone, loss.down) > 0
    assert loss.down == pytest.approx(1 - math.exp(-330.0 / (2 * HOUR)))


def test_limits():
    # No faults: only saves cost time. Never saved: all is lost at some time, or nothing without faults.
    assert useful_part([disk()], 1e-15, 300.0) == pytest.approx(60 / 61)
    assert (useful_part([disk(interval=math.inf)], 0.0, 1.0), useful_part([disk(interval=math.inf)], 1.0, 1.0)) == (
        1,
        0,
    )
    assert useful_part([disk(interval=1e-9)], 1 / DAY, 300.0) < 1e-10
    assert useful_part([disk(interval=1e9)], 1 / DAY, 300.0) == 0.0
    # A tier that no fault needs costs its saves alone, and keeps its interval.
    assert with_best_intervals([disk(), disk(share=0.0)], 1 / DAY, 0.0)[1].interval == HOUR
    assert useful_part([disk(share=1.0), disk(share=0.0)], 1 / DAY, 0.0) == pytest.approx(
        useful_part([disk()], 1 / DAY, 0.0) / (1 + 60 * useful_part([disk()], 1 / DAY, 0.0) / HOUR)
    )


def test_a_million_hosts_lose_all_and_nothing_overflows():
    way, last = [disk()], 1.0
    for hosts in (1, 10, 1_000, 100_000, 1_000_000):
        rate = hosts / (30 * DAY)
        best = with_best_intervals(way, rate, 300.0)
        ettr, (low, high) = useful_part(best, rate, 300.0), ettr_bounds(best, rate, 300.0, 7 * DAY)
        assert 0.0 <= low <= ettr <= high <= 1.0
        assert ettr < last
        last = ettr
    assert last < 1e-30
    assert useful_part(with_best_intervals(way, 1e9, 1e7), 1e9, 1e7) == 0.0


@pytest.mark.parametrize("faults", [0.3, 3.0, 30.0])
def test_nineteen_of_twenty_jobs_are_within_the_bounds(faults):
    tiers, rate = [disk(blocked=5.0, interval=600.0)], 1 / 3000
    seconds = faults / rate
    low, high = ettr_bounds(tiers, rate, 100.0, seconds)
    jobs = [Job(tiers, 100.0).run(random_faults(tiers, rate, seed), seconds) / seconds for seed in range(300)]
    assert 0.92 <= sum(low <= job <= high for job in jobs) / len(jobs) <= 0.995
    assert high - low < 1.0


def test_counts_of_faults():
    assert poisson_part(0, 2.0) == pytest.approx(math.exp(-2))
    # Both sides of the mean from which a normal distribution stands in.
    assert poisson_part(1010, 999.9) == pytest.approx(poisson_part(1010, 1000.1), abs=0.01)


def test_a_schedule_of_faults():
    def work(*faults, seconds=100.0, **members):
        tier = disk(**{"blocked": 1.0, "save": 1.0, "load": 2.0, "interval": 10.0, **members})
        return Job([tier], 3.0).run(list(faults), seconds)

    assert work() == 91.0
    # In work, in a save, in the restart of the fault before, and behind the end.
    assert work((25.0, 0), seconds=60.0) == 48.0
    assert work((10.5, 0), seconds=16.5) == 1.0
    assert work((25.0, 0), (27.0, 0), seconds=60.0) == 46.0
    assert work((200.0, 0)) == 91.0
    # A save in the background counts once it is complete, and the next one waits for it.
    assert work((13.0, 0), seconds=20.0, save=5.0) == 2.0
    assert work((15.0, 0), seconds=25.0, save=5.0) == 15.0
    assert work(seconds=100.0, save=25.0) == 50.0


def test_a_fault_that_spares_memory_goes_back_to_it():
    memory = disk(blocked=0.0, save=0.0, load=0.0, interval=1.0)
    slow = disk(blocked=0.0, save=0.0, load=1.0, interval=10.0)
    assert Job([memory, slow], 2.0).run([(15.5, 0)], 20.0) == 15.0 + 2.5
    assert Job([memory, slow], 2.0).run([(15.5, 1)], 20.0) == 10.0 + 1.5
    # What came from the disk is in memory again.
    assert Job([memory, slow], 2.0).run([(15.5, 1), (18.5, 0)], 22.0) == 10.0 + 1.5
