"""Weights & Biases: one run a job, by W&B's own client, which sends in the background and keeps files when offline.

The run's id is made of the job's name and time, so a later process goes on with the same run. Each row has the member
`step`, which is the axis of every metric, because W&B's own step can only grow, and a restarted job repeats steps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from herringbone.trackers.tracker import calls_of

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination
    from herringbone.trackers.facts import JobFacts
    from herringbone_contract.events.format import Point

STEP = "step"
_INIT_SECONDS = 30


class WandbTracker:
    """See `Tracker`. Files that W&B keeps lie in the job's folder, unless WANDB_DIR is set."""

    def __init__(self, destination: Destination, folder: Path) -> None:
        self._entity = destination.place or None
        self._project = destination.project
        self._folder = folder
        self._run: Any = None
        self._exit_code = 0
        self.state: dict[str, Any] = {}

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:
        run_id = hashlib.sha256(f"{facts.name} {facts.created}".encode()).hexdigest()[:16]
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            init_timeout=_INIT_SECONDS,
            save_code=False,
            silent=True,
            # This process is not the training.
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        with _calls():
            self._run = self._init(
                id=run_id,
                name=facts.name,
                project=self._project,
                entity=self._entity,
                config=facts.values,
                resume="allow",
                dir=None if os.environ.get("WANDB_DIR") else str(self._folder),
                settings=settings,
            )
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
            self._set_facts(facts)
        self.state = {**state, "run": run_id, "address": self._run.url or str(Path(self._run.dir).parent)}

    def log(self, points: Sequence[Point]) -> None:
        with _calls():
            for (step, time), row in groupby(points, lambda point: (point.step, point.time)):
                values = {point.name: point.value for point in row}
                self._run.log({**values, STEP: step, "_timestamp": time})

    def end(self, facts: JobFacts) -> None:
        self._exit_code = 0 if facts.completed else 1
        with _calls():
            self._set_facts(facts)
            # W&B's client waits here until the service has everything.
            self._run.finish(exit_code=self._exit_code)
        self._run = None

    def close(self) -> None:
        if self._run is not None:
            with _calls():
                self._run.finish(exit_code=self._exit_code)
            self._run = None

    def _init(self, **arguments: Any) -> Any:
        try:
            return wandb.init(**arguments)
        except BaseException:
            # Otherwise W&B's own process holds the run, and refuses the next try.
            with suppress(Exception):
                wandb.teardown(exit_code=1)
            raise

    def _set_facts(self, facts: JobFacts) -> None:
        self._run.config.update({"herringbone": facts.own_tags}, allow_val_change=True)


def _calls() -> AbstractContextManager[None]:
    return calls_of("W&B", lambda error: isinstance(error, wandb.errors.CommError))
