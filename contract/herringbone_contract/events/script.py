"""Metrics and progress that a script sends itself: `herringbone.log_metrics` and `herringbone.log_progress`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from herringbone_contract.events import emit

# Larger integers are no longer exact as numbers of JSON.
_MOST = 1 << 53


def log_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Send the values of some metrics to the job's events.

        herringbone.log_metrics({"loss": 0.5, "accuracy": 0.9}, step=10)

    A value is a number, or what `float` takes, such as a tensor of one element; NaN and infinities are kept. `step` is
    an integer. Values are of the calling rank. A rank may send 1,000 values a second; what is more, or finds no room
    because nobody reads, is dropped. Outside a job nothing happens.

    Raises `InputError` for values that are no numbers.
    """
    if not isinstance(metrics, Mapping):
        raise _refused(f'metrics is a {type(metrics).__name__}; give names and values, as in {{"loss": 0.5}}')
    number = None if step is None else _integer(step)
    values = {str(name): _number(f"metrics[{name!r}]", value) for name, value in metrics.items()}
    for name, value in values.items():
        emit.metric(name, value, number)


def log_progress(done: float, total: float | None = None, *, unit: str = "step", eta: float | None = None) -> None:
    """Send how much of the work is done.

        herringbone.log_progress(step, total_steps)

    `done` and `total` count `unit`s, and a `total` of None is unknown. `eta` is the time until the end in seconds; the
    default is an estimate from the calls so far. Call it on one rank, because the newest call counts for the whole
    job, and as often as you like: once a second the newest one is kept. Outside a job nothing happens.

    Raises `InputError` for values that are no finite numbers.
    """
    number, whole = _finite("done", done), None if total is None else _finite("total", total)
    seconds = _pace.estimate(number, whole, time.monotonic()) if eta is None else _finite("eta", eta)
    emit.emit("progress", done=number, total=whole, unit=str(unit), eta=seconds)


class Pace:
    """Estimates when the work of a script ends. Pure: the caller passes the time in seconds.

    >>> pace = Pace()
    >>> pace.estimate(0, 100, 5.0), pace.estimate(50, 100, 25.0)
    (None, 20.0)
    """

    # The time and the work done at the first call, or at the first one after the work began again.
    _first: tuple[float, float] | None = None

    def estimate(self, done: float, total: float | None, now: float) -> float | None:
        """Return the seconds until the end if the work goes on as fast as since the first call."""
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        begin, before = self._first
        if total is None or done <= before:
            return None
        return round((now - begin) / (done - before) * max(0.0, total - done), 3)


_pace = Pace()


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # torch raises a RuntimeError for a tensor of several elements.
        raise _refused(f"{name} is no number but a {type(value).__name__} ({error})") from None


def _finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise _refused(f"{name} is {number}, and no finite number")
    return int(number) if number == int(number) else number


def _integer(step: Any) -> int:
    number = _number("step", step)
    if not abs(number) < _MOST or number != int(number):
        raise _refused(f"step is {step!r}, and no integer")
    return int(number)


def _refused(text: str) -> Exception:
    # Imported here: a script that makes no mistake does not need it.
    from herringbone_contract.errors import InputError

    return InputError(text)
