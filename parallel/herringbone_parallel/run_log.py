"""Writes a training's own log in MLPerf's format: its start, its results and its speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.mllog import POINT, START, START_ENDING, STOP, STOP_ENDING, Event, render


class RunLog:
    """Writes `:::MLLOG` lines from `run_start` to `run_stop`, and a last line with the run's figures.

        log = RunLog(ranks=world_size, active=rank == 0, target=0.97, alone=410.0)     # first thing in the script
        with log.interval("init"):
            ...
        for epoch in range(1, epochs + 1):
            with log.epoch(epoch):                      # samples/s count the time of epochs only
                for batch in data:
                    ...
                    log.count(global_batch)             # all ranks' samples
            if log.evaluation("eval_accuracy", accuracy, epoch):
                break                                       # the target is reached
        log.finish(require_target=True)

    The clock starts with the construction, so that initialisation counts, as in MLPerf. Every rank may have a log; an
    inactive log writes nothing and returns the same values. `target` is the value that an evaluation must reach: at
    least, or at most with `lower_is_better`. `alone` is the samples/s of one rank by itself. With it the last line has
    the scaling efficiency, samples/s / (ranks x alone). `TrainingJob.metrics()` reads all lines.
    """

    def __init__(
        self,
        *,
        ranks: int = 1,
        active: bool = True,
        target: float | None = None,
        lower_is_better: bool = False,
        alone: float | None = None,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if alone is not None and not alone > 0:
            raise ParallelError(f"alone={alone}: the samples/s of one rank by itself must be above 0")
        self._ranks, self._active, self._alone = ranks, active, alone
        self._target, self._sign = target, -1 if lower_is_better else 1
        self._write = write or _print
        self._clock = clock
        self._samples, self._seconds = 0, 0.0
        self._best: float | None = None
        self._seconds_to_target: float | None = None
        self._start_s = self._event("run" + START_ENDING, kind=START)

    def point(self, key: str, value: Any, **metadata: Any) -> None:
        """Write one value: a number, a string, or an object of them."""
        self._event(key, value, metadata=metadata)

    @contextmanager
    def interval(self, key: str, **metadata: Any) -> Iterator[None]:
        """Write the start and the end of the `with` block; a block that raises has no end in the log."""
        self._event(key + START_ENDING, kind=START, metadata=metadata)
        yield
        self._event(key + STOP_ENDING, kind=STOP, metadata=metadata)

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Write the start and the end of an epoch of training, and measure its time."""
        with self.interval("epoch", epoch_num=number):
            start_s = self._clock()
            yield
            self._seconds += self._clock() - start_s

    def count(self, samples: int) -> None:
        """Count the samples of a step, those of all ranks."""
        self._samples += samples

    def evaluation(self, key: str, value: float, epoch: int) -> bool:
        """Write the result of an evaluation; return True if this or an earlier evaluation reached the target."""
        now = self._event(key, value, metadata={"epoch_num": epoch})
        # With `lower_is_better` the sign turns both comparisons around.
        if self._best is None or self._sign * value > self._sign * self._best:
            self._best = value
        reached = self._target is not None and self._sign * value >= self._sign * self._target
        if reached and self._seconds_to_target is None:
            self._seconds_to_target = now - self._start_s
        return self._seconds_to_target is not None

    def finish(self, *, require_target: bool = False) -> dict[str, float]:
        """Write the end and the figures, and return them.

        Raises `ParallelError`, which fails the job, when no evaluation reached the target and `require_target` is True.
        """
        missed = self._target is not None and self._seconds_to_target is None
        self._event("run" + STOP_ENDING, kind=STOP, metadata={"status": "aborted" if missed else "success"})
        figures = self._figures()
        self._event("tracked_stats", figures)
        if missed and require_target:
            best = "no evaluation took place" if self._best is None else f"the best was {self._best:g}"
            raise ParallelError(
                f"the target of {self._target:g} was never reached: {best}. Train longer, or lower the target"
            )
        return figures

    def _figures(self) -> dict[str, float]:
        figures = {}
        if self._samples and self._seconds > 0:
            figures["throughput"] = self._samples / self._seconds
            if self._alone is not None:
                figures["scaling_efficiency"] = figures["throughput"] / (self._ranks * self._alone)
        if self._seconds_to_target is not None:
            figures["seconds_to_target"] = self._seconds_to_target
        return figures

    def _event(
        self, key: str, value: Any = None, *, kind: str = POINT, metadata: dict[str, Any] | None = None
    ) -> float:
        now = self._clock()
        if self._active:
            self._write(render(Event(key, value, round(1000 * now), kind, metadata or {})))
        return now


def _print(line: str) -> None:
    # Flush at once: a job that is stopped must not lose its last lines.
    print(line, flush=True)
