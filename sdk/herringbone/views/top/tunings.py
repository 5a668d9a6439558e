"""Searches as rows of `herringbone top`, above the trials that run for them. Thin: the texts are pure functions."""

from __future__ import annotations

import time
from dataclasses import replace

from herringbone.tuner.look import TuningLook
from herringbone.tuner.store import TrialRecord
from herringbone.views.top.detail import MOST_LINES, Detail
from herringbone.views.top.rows import Row
from herringbone.views.tunings.shown import headline, shown_values, trial_table


def tuning_row(look: TuningLook, *, now: float) -> Row:
    """Return the row of a search: its trials are its progress, and its metric is the best objective. Pure."""
    summary = look.summary(now=now)
    winner = summary.best
    return Row(
        name=look.name,
        kind="tuning",
        backend=look.backend,
        state=look.status,
        running=not look.done,
        created=look.created,
        seconds=summary.seconds,
        done=float(summary.over),
        total=float(summary.limit),
        unit="trials",
        fraction=summary.fraction,
        eta=summary.eta,
        metric=look.definition.metric,
        value=None if winner is None else winner.objective,
        trial="" if winner is None else f"best: {winner.number + 1}, {shown_values(winner.values)}",
        last_line=headline(look.definition, look.trials),
        trouble=(look.reason or "").partition("\n")[0],
    )


def trial_row(row: Row, look: TuningLook, record: TrialRecord) -> Row:
    """Return the row of a job with what is known about the trial that it is. Pure."""
    text = f"{record.number + 1}: {shown_values(record.values)}"
    return replace(row, tuning=look.name, trial=text, group=look.created)


def tuning_detail(row: Row, look: TuningLook, *, now: float) -> Detail:
    """Return the detail view of a search: its trials, the best ones first. Pure."""
    table = trial_table(look.definition, look.trials, now=now, by_result=True)[: MOST_LINES + 1]
    notes = (headline(look.definition, look.trials), *filter(None, [look.reason]))
    return Detail(row=row, metrics=tuple(table) if len(table) > 1 else (), hosts=(), ranks=(), notes=notes, lines=())


class TuningReader:
    """One search: `row` and `detail` are those of the newest look."""

    def __init__(self, look: TuningLook) -> None:
        self._look = look

    @property
    def row(self) -> Row:
        return tuning_row(self._look, now=time.time())

    @property
    def detail(self) -> Detail:
        return tuning_detail(self.row, self._look, now=time.time())

    def take(self, look: TuningLook) -> None:
        """Show this look from now on; another thread may be showing the last one."""
        self._look = look

    def open_detail(self) -> None:
        """Return at once: the detail of a search is made on demand."""

    def stop_job(self) -> None:
        """Ask the search to stop, with its trials. Raises the backend's errors."""
        from herringbone.tuner.tuning import find_tuning

        find_tuning(self._look.name).stop()
