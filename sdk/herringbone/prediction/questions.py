"""Parts of a question to the predictor: the length of a job, its batch, changes of it, the fewest hosts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from herringbone.plan.plan import JobPlan
from herringbone.prediction.options import MOST_HOSTS, WhatIf
from herringbone_contract.distribution import parse
from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import decode_values
from herringbone_contract.layout import ranks_per_host
from herringbone_contract.prediction.answer import Prediction
from herringbone_contract.prediction.question import Work

# The names that scripts give to the number of optimizer steps, and to the number of epochs.
_STEPS = ("max_steps", "max-steps", "num_steps", "train_steps", "steps", "total_steps", "max_train_steps")
_EPOCHS = ("epochs", "num_train_epochs", "num_epochs", "max_epochs", "epoch", "num-train-epochs", "num-epochs")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a measurement that the SDK reads: samples of a rank and step, samples of an epoch, device, notes."""

    batch: int | None = None
    epoch_samples: int | None = None
    device: str = "cpu"
    wrapper: str = ""
    notes: tuple[str, ...] = ()


def work_of(plan: JobPlan, summary: Summary, *, steps: int | None, start_seconds: float) -> Work:
    """Return the length of a job: `steps`, or what a hyperparameter says about steps or epochs.

    >>> Work(steps=100, start_seconds=2.0).steps
    100

    Without any of them the length is not known, and the prediction has no end.
    """
    values = decode_values(plan.hyperparameters)
    if steps is None:
        steps = _count(values, _STEPS)
    if steps is not None:
        return Work(steps=steps, start_seconds=start_seconds)
    epochs = _amount(values, _EPOCHS)
    if epochs is not None and summary.epoch_samples:
        return Work(samples=max(1, round(epochs * summary.epoch_samples)), start_seconds=start_seconds)
    return Work(start_seconds=start_seconds)


def scale_of(summary: Summary, batch: int | None) -> float:
    """Return the factor of the measured batch that another batch means.

    >>> scale_of(Summary(batch=32), 64)
    2.0
    """
    if batch is None:
        return 1.0
    if not summary.batch:
        raise OptionError(
            "batch: the measured step does not tell its number of samples, so no other number can be predicted; leave"
            " batch out, or change the script's own hyperparameter and measure again"
        )
    return batch / summary.batch


def changed(plan: JobPlan, change: WhatIf) -> JobPlan:
    """Return a plan with another distribution, instance type or number of hosts; its backend has not reviewed it.

    Helpers stay as they are. Raises `DistributionError` for a distribution that means nothing.
    """
    distribution = plan.distribution if change.distribution is None else parse(change.distribution)
    first = next(host for host in plan.hosts if host.ranks != 0)
    count = change.instance_count or sum(host.ranks != 0 for host in plan.hosts)
    if count > MOST_HOSTS:
        raise OptionError(f"instance_count: {count} hosts; a prediction is of {MOST_HOSTS} at most")
    ranks = first.ranks
    if change.distribution is not None:
        ranks = ranks_per_host(distribution.launcher, distribution.processes_per_host)
    training = [
        msgspec.structs.replace(
            first, name=f"algo-{number}", instance_type=change.instance_type or first.instance_type, ranks=ranks
        )
        for number in range(1, count + 1)
    ]
    others = [host for host in plan.hosts if host.ranks == 0]
    return msgspec.structs.replace(plan, distribution=distribution, hosts=(*training, *others))


def samples_of(prediction: Prediction, steps: int) -> int | None:
    """Return the samples that so many steps of a layout see; None where the prediction has no speed.

    More hosts see more samples in a step, so the length of a job on other hosts counts in samples.
    """
    if prediction.samples_per_second is None or prediction.step is None:
        return None
    return max(1, round(steps * prediction.samples_per_second * prediction.step.seconds.expected))


def fewest(seconds_of: Callable[[int], float | None], limit: float, *, most: int = 1024) -> tuple[int | None, int]:
    """Return the fewest hosts whose time is at most `limit`, and the number of hosts with the shortest time seen.

    >>> fewest(lambda hosts: 100 / hosts, 30.0)
    (4, 4)

    `seconds_of` returns None for hosts that cannot train the job. The first is None where no number up to `most`
    suffices. Times are taken to fall with hosts until they are lowest.
    """
    best, best_seconds, below, count = 1, float("inf"), 0, 1
    while count <= most:
        seconds = seconds_of(count)
        if seconds is not None and seconds <= limit:
            break
        if seconds is not None and seconds < best_seconds:
            best, best_seconds = count, seconds
        # Twice as many hosts that are slower than the fastest ones: the sums between them cost more than they bring.
        elif seconds is not None and count >= 4 * best:
            return None, best
        below, count = count, 2 * count
    else:
        return None, best
    while count - below > 1:
        middle = (below + count) // 2
        seconds = seconds_of(middle)
        below, count = (below, middle) if seconds is not None and seconds <= limit else (middle, count)
    return count, count


def _count(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    amount = _amount(values, names)
    return None if amount is None or amount < 1 else int(amount)


def _amount(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the first of these hyperparameters that is a positive number; -1 means "not set" in many scripts."""
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
    return None
