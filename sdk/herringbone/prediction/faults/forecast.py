"""The answer to `--faults`: lost time by tier and interval, the best interval, the job on more hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from herringbone.plan.plan import JobPlan
from herringbone.prediction.faults.costs import Costs
from herringbone.prediction.faults.model import Loss, Tier, expected, useful_part, with_best_intervals
from herringbone.prediction.faults.options import FaultWords
from herringbone.prediction.faults.spread import ettr_bounds, poisson_part
from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import decode_values

_HOSTS = (8, 64, 1024)
# Multiples of the best interval: they show how flat the optimum is.
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# The name that transformers gives to the steps between two saves.
_SAVE_STEPS = "save_steps"
_LEAST_ETTR, _SURE = 0.01, 0.95


class IntervalRow(Struct, frozen=True, kw_only=True):
    """The loss with one tier and one interval, in seconds of work and, where a step is known, in steps."""

    tier: str
    interval: float
    steps: int | None
    note: str
    loss: Loss


class HostsRow(Struct, frozen=True, kw_only=True):
    """The useful part of the time on some hosts at the best interval, with the bounds of 95 % of such jobs."""

    hosts: int
    mtbf: float
    tier: str
    interval: float
    ettr: float
    low: float
    high: float


class FaultForecast(Struct, frozen=True, kw_only=True):
    """The cost of faults of one rate: times in seconds, parts of the time of the job.

    `faults` is the expected number in the `run` seconds of the job.
    """

    hosts: int
    mtbf: float
    down: float
    run: float
    faults: float
    intervals: tuple[IntervalRow, ...]
    scaling: tuple[HostsRow, ...]
    notes: tuple[str, ...]


def fault_forecast(plan: JobPlan, words: FaultWords, costs: Costs, retries: int | None) -> FaultForecast:
    """Return what faults cost the job of a plan, which may begin again `retries` times; never with None.

    Raises `OptionError` for an interval in steps whose seconds nobody knows.
    """
    hosts = len(plan.hosts)
    rate = 1 / words.mtbf if words.of_job else hosts / words.mtbf
    own = _own_interval(plan, words, costs.step)
    best = [with_best_intervals(way, rate, costs.down, costs.step or 0.0) for way in costs.ways]
    ettr = max(useful_part(way, rate, costs.down) for way in best)
    run = _run_seconds(plan, ettr)
    counts = sorted({hosts, *_HOSTS})
    return FaultForecast(
        hosts=hosts,
        mtbf=1 / rate,
        down=costs.down,
        run=run,
        faults=rate * run,
        intervals=tuple(row for way in best for row in _rows(way, rate, costs, own)),
        scaling=tuple(_on_hosts(count, rate / hosts * count, costs, run) for count in counts),
        notes=(*costs.notes, *_warnings(ettr, retries, rate * run)),
    )


def _warnings(ettr: float, retries: int | None, faults: float) -> Iterator[str]:
    """Yield reasons why the job may not end at all."""
    if ettr < _LEAST_ETTR:
        yield "the job hardly gets on: it is stopped by a fault again before it has done anything new"
    enough = poisson_part(retries or 0, faults)
    if not retries:
        yield "max_retry_attempts is not set, so the first fault ends the job"
    elif enough < _SURE:
        yield f"max_retry_attempts={retries} is enough for {100 * enough:.0f} % of such jobs"


def _own_interval(plan: JobPlan, words: FaultWords, step: float | None) -> float | None:
    """Return the seconds between two saves of the script itself; None where they are not known."""
    if words.every is not None:
        return words.every
    if words.every_steps is None:
        steps = decode_values(plan.hyperparameters).get(_SAVE_STEPS)
        return steps * step if step and isinstance(steps, int) and steps > 0 else None
    if step is None:
        raise OptionError(
            f"--faults: every={words.every_steps} are steps, and the time of one is not known; add step=0.5s, or"
            " measure the script: --measure"
        )
    return words.every_steps * step


def _run_seconds(plan: JobPlan, ettr: float) -> float:
    """Return the length of the job: what is predicted, at most its limit, after which it is stopped."""
    predicted = None if plan.prediction is None else plan.prediction.planned.seconds
    if predicted is None or not ettr:
        return float(plan.time_limit)
    return max(1.0, min(predicted.expected / ettr, float(plan.time_limit)))


def _rows(best: Sequence[Tier], rate: float, costs: Costs, own: float | None) -> list[IntervalRow]:
    """Return rows for the fastest tier's intervals, the shortest first; slower tiers keep their best one."""
    step = costs.step
    intervals = {best[0].interval: "best"}
    for factor in _FACTORS:
        interval = best[0].interval * factor
        intervals.setdefault(max(1, round(interval / step)) * step if step else interval, "")
    if own is not None:
        intervals[own] = "yours, best" if intervals.get(own) == "best" else "yours"
    return [
        IntervalRow(
            tier=best[0].name,
            interval=interval,
            steps=round(interval / step) if step else None,
            note=note,
            loss=expected((replace(best[0], interval=interval), *best[1:]), rate, costs.down),
        )
        for interval, note in sorted(intervals.items())
    ]


def _on_hosts(hosts: int, rate: float, costs: Costs, run: float) -> HostsRow:
    ways = [with_best_intervals(way, rate, costs.down, costs.step or 0.0) for way in costs.ways]
    best = max(ways, key=lambda way: useful_part(way, rate, costs.down))
    low, high = ettr_bounds(best, rate, costs.down, run)
    return HostsRow(
        hosts=hosts,
        mtbf=1 / rate,
        tier=best[0].name,
        interval=best[0].interval,
        ettr=useful_part(best, rate, costs.down),
        low=low,
        high=high,
    )
