"""Rehearse a job: two undisturbed runs, one for each fault, and the comparison of each with the undisturbed ones."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.facts import settings_of_job
from herringbone.backends.rehearsed import key_of
from herringbone.events.view import JobView
from herringbone.records.rehearsals import CHECKPOINTS, REPORT, RESULT
from herringbone.rehearsal.faults import UNDISTURBED, Fault, impossible
from herringbone.rehearsal.rows import NOT_CAUSED, Rehearsal, Row, judged
from herringbone.rehearsal.runs import Pulse, Run, Runs
from herringbone_contract.errors import InputError, LaunchError
from herringbone_contract.files import write_whole
from herringbone_contract.rehearsal import records
from herringbone_contract.rehearsal.comparison import compare, repeatable
from herringbone_contract.rehearsal.verdict import Outcome

if TYPE_CHECKING:
    from herringbone.plan.request import JobRequest
    from herringbone.protocols.backend import Backend
    from herringbone.rehearsal.runs import Submit

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One backend of a rehearsal, by its instance type, and the request of its runs."""

    name: str
    request: JobRequest
    backend: Backend


def rehearse(name: str, stages: Sequence[Stage], faults: Sequence[Fault], submit: Submit, say: Say) -> Rehearsal:
    """Run the rehearsal in its folder, which exists, and return its result; Ctrl-C ends the run that is going on.

    Raises `LaunchError` for a job that fails undisturbed, and `InputError` for one that saves no checkpoint.
    """
    rows: list[Row] = []
    keys: list[str] = []
    home = stages[0].backend.home
    folder = home.rehearsal(name)
    for number, stage in enumerate(stages, 1):
        place = stage.request.options.checkpoint_s3_uri
        own = str(folder / CHECKPOINTS) if place is None else f"{place.rstrip('/')}/{name}"
        label = f"{name}-{number}" if len(stages) > 1 else name
        runs = Runs(label, stage.request, stage.backend, f"{own}/{label}", submit)
        say(f"rehearsal {name}: on {stage.name}, two undisturbed runs")
        try:
            new = _Rehearsed(runs, stage, faults, say).rows()
        except BaseException:
            runs.end()
            # Without a result, nobody compares the checkpoints. The jobs stay, with their logs.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        keys += filter(None, [key_of(stage.backend.describe(new[0].jobs[0]), home)])
        rows += new
    first = rows[0].jobs[0]
    made = Rehearsal(
        name=name, ended=time.time(), rows=tuple(rows), report=str(folder / REPORT), keys=tuple(dict.fromkeys(keys))
    )
    settings = settings_of_job(stages[0].backend, first)
    write_whole(folder / REPORT, made.page(list(settings.items())).encode())
    write_whole(folder / RESULT, msgspec.json.encode(made.to_dict()), synced=True)
    return made


class _Rehearsed:
    """The runs of one backend, and their rows."""

    def __init__(self, runs: Runs, stage: Stage, faults: Sequence[Fault], say: Say) -> None:
        self._runs, self._stage, self._faults, self._say = runs, stage, faults, say
        self._is_recorded = False

    def rows(self) -> list[Row]:
        undisturbed = [self._undisturbed(number) for number in (1, 2)]
        recorded = [self._recorded(run) for run in undisturbed]
        row = Row(
            backend=self._stage.name,
            fault=UNDISTURBED,
            equal="unknown",
            jobs=(*undisturbed[0].jobs, *undisturbed[1].jobs),
        )
        verdict = repeatable(*recorded)
        # A difference in the part that was recorded need not be one of the training.
        self._is_recorded = verdict.outcome is not Outcome.UNKNOWN
        rows = [self._told(judged(row, verdict))]
        pulse = self._pulse(undisturbed)
        for number in (1, 2):
            self._runs.clear(f"{UNDISTURBED}-{number}")
        return [*rows, *(self._told(self._row(fault, recorded, pulse)) for fault in self._faults)]

    def _row(self, fault: Fault, recorded: Sequence[records.Run], pulse: Pulse) -> Row:
        row = Row(backend=self._stage.name, fault=fault.name, equal=NOT_CAUSED)
        if why := impossible(fault, self._stage.request, self._stage.backend.name):
            return msgspec.structs.replace(row, text=why)
        self._say(f"{fault.name} on {self._stage.name}: {fault.text}")
        run = self._runs.disturbed(fault.name, fault, pulse)
        row = msgspec.structs.replace(row, jobs=run.jobs, detected=run.detected, text=run.not_caused)
        if run.not_caused:
            return row
        if run.trouble:
            return msgspec.structs.replace(row, equal="no", text=f"the job did not go on: {run.trouble}")
        row = msgspec.structs.replace(row, lost=max(0.0, run.seconds - pulse.seconds))
        row = judged(row, compare(recorded, self._recorded(run), layout=fault.layout))
        if row.equal == "no" and not self._is_recorded:
            row = msgspec.structs.replace(
                row, equal="unknown", text=f"the undisturbed runs are not recorded; {row.text}"
            )
        # Those of a run that differs are there to be looked at.
        if row.equal == "yes":
            self._runs.clear(fault.name)
        return row

    def _undisturbed(self, number: int) -> Run:
        run = self._runs.undisturbed(f"{UNDISTURBED}-{number}")
        if run.trouble:
            raise LaunchError(
                f"rehearsal: the job does not complete without a fault: {run.trouble}; `herringbone logs {run.jobs[0]}`"
                " shows why"
            )
        if not self._view(run).checkpoints:
            raise InputError(
                f"rehearsal: job {run.jobs[0]} saved no checkpoint, so no restart could go on from one: let the script "
                "save into the folder SM_CHECKPOINT_DIR, more than once in a run"
            )
        return run

    def _recorded(self, run: Run) -> records.Run:
        return records.read(self._runs.events(*run.jobs))

    def _view(self, run: Run) -> JobView:
        return JobView().take_all(self._runs.events(*run.jobs))

    def _pulse(self, undisturbed: Sequence[Run]) -> Pulse:
        views = [self._view(run) for run in undisturbed]
        rates = [1 / view.steps_per_second for view in views if view.steps_per_second]
        moments = sorted(event.t for event in views[0].checkpoints)
        gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
        return Pulse(
            seconds=statistics.mean(run.seconds for run in undisturbed),
            step=max(rates, default=0.0),
            save=max(gaps, default=0.0),
        )

    def _told(self, row: Row) -> Row:
        self._say(f"{row.fault} on {row.backend}: {row.cells[-1]}")
        return row
