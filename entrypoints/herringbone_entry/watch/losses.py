"""Find a loss that is no number any more, or that has become a multiple of what it was. Pure."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone_contract.events.format import HUGGING_FACE, LIGHTNING
from herringbone_contract.faults.bad_steps import BadSteps
from herringbone_entry.watch.stragglers import median

# A value is compared with the median of so many before it, and so many high ones in a row are a spike.
_WINDOW, _LEAST, _IN_A_ROW = 50, 20, 3
_SERIES = 64
# Losses of an evaluation come seldom, and on other data.
_OTHERS = {"eval", "val", "valid", "validation", "test"}
# By source: the step of a loss less that of the optimizer, and the loader's batches of a step; 0 where a hook knows.
_PACES = {HUGGING_FACE: (1, 0), LIGHTNING: (0, 0)}
# Words of names that are about a loss, and are none.
_NO_LOSS = {"scale", "scaler", "weight", "factor", "coef", "count", "steps"}


class LossFault(NamedTuple):
    """A loss that is wrong: `fault` is "nan_loss" or "loss_spike", `usual` the median before it, `bad` its steps."""

    fault: str
    rank: int | None
    name: str
    value: float
    step: int | None
    usual: float | None
    bad: BadSteps

    @property
    def text(self) -> str:
        """The fault in words, such as "train/loss is nan at step 70, after 2.31"."""
        at = "" if self.step is None else f" at step {self.step}"
        if self.usual is None:
            return f"{self.name} is {self.value:g}{at}"
        before = f"after {self.usual:.4g}"
        if self.fault != "nan_loss":
            before = f"{self.value / self.usual:.1f} times as much as the median before it, {self.usual:.4g}"
        return f"{self.name} is {self.value:.4g}{at}, {before}"


class Losses:
    """Takes the metrics of a host's ranks; each kind of fault of a series is found once.

    >>> losses = Losses(factor=None)
    >>> losses.take({"name": "train/loss", "rank": 1, "step": 7, "by": 1, "values": [2.5, "nan"]}).text
    'train/loss is nan at step 8, after 2.5'

    A metric is a loss if its name has the word "loss", as `train/loss`, and none such as "scale". A `factor` has spikes
    looked for. `begin` is the time from which on checkpoints may have a fault that follows no good loss.
    """

    def __init__(self, factor: float | None, begin: float | None = None) -> None:
        self._factor, self._begin = factor, time.time() if begin is None else begin
        # The last good loss of each series: its time, and the step of the optimizer behind it.
        self._good: dict[tuple[str, int | None], tuple[float, int | None]] = {}
        self._recent: dict[tuple[str, int | None], deque[float]] = {}
        self._high: dict[tuple[str, int | None], int] = {}
        self._found = set[tuple[str, str, int | None]]()

    def take(self, event: Mapping[str, Any]) -> LossFault | None:
        """Take an event `metrics`; return the first fault that it shows."""
        name, rank, values = event.get("name"), event.get("rank"), event.get("values")
        if not isinstance(name, str) or not isinstance(values, list) or not _is_loss(name):
            return None
        key = (name, rank if isinstance(rank, int) else None)
        if key not in self._recent and len(self._recent) >= _SERIES:
            return None
        recent = self._recent.setdefault(key, deque(maxlen=_WINDOW))
        for number, value in enumerate(values):
            fault = self._judge(key, recent, value)
            step, by = event.get("step"), event.get("by") or 0
            at = step + by * number if isinstance(step, int) and isinstance(by, int) else None
            end, batches = _end(event, at)
            if fault and (fault, *key) not in self._found:
                self._found.add((fault, *key))
                since, good = self._good.get(key, (self._begin, None))
                bad = BadSteps(since, good, end, batches)
                return LossFault(fault, key[1], name, float(value), at, median(recent) if recent else None, bad)
            if not fault and not self._high.get(key):
                self._good[key] = _time(event, number), end
        return None

    def _judge(self, key: tuple[str, int | None], recent: deque[float], value: Any) -> str:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return ""
        if not math.isfinite(number):
            return "nan_loss"
        usual = median(recent) if self._factor and len(recent) >= _LEAST else 0.0
        if self._factor and usual > 0.0 and number > self._factor * usual and not _words(key[0]) & _OTHERS:
            self._high[key] = self._high.get(key, 0) + 1
            return "loss_spike" if self._high[key] >= _IN_A_ROW else ""
        self._high[key] = 0
        recent.append(number)
        return ""


def _is_loss(name: str) -> bool:
    words = _words(name)
    return "loss" in words and not words & _NO_LOSS


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _end(event: Mapping[str, Any], at: int | None) -> tuple[int | None, int]:
    """Return the step of the optimizer behind a loss of the step `at`, and the batches of a step."""
    pace = event.get("pace") or _PACES.get(event.get("source", ""))
    if at is None or not isinstance(pace, (list, tuple)) or len(pace) != 2 or any(type(one) is not int for one in pace):
        return None, 0
    return at - pace[0] + 1, pace[1]


def _time(event: Mapping[str, Any], number: int) -> float:
    """Return the time of a value: those of an event are evenly spaced."""
    end, since = float(event.get("t", 0.0)), event.get("since")
    begin = float(since) if isinstance(since, (int, float)) else end
    return begin + (end - begin) * number / max(len(event["values"]) - 1, 1)
