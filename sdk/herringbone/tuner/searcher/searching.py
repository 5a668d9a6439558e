"""Search with this machine's parts: the store, the backend of the plan, and the strategy of the definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from herringbone.tuner.searcher.runner import Searcher
from herringbone.tuner.searcher.trial_jobs import Submit, TrialJobs
from herringbone.tuner.strategies.choose import copy_for, strategy_for
from herringbone.tuner.strategies.early_stopping import judged

if TYPE_CHECKING:
    from herringbone.plan.request import JobRequest
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.store import TuningStore
    from herringbone.tuner.trials import Trial


def search(
    store: TuningStore, request: JobRequest | None, *, say: Callable[[str], None], submit: Submit | None = None
) -> bool:
    """Search to the end, unless another process does; return whether this process did.

    `submit` starts the job of a trial. Without a request, no job can be started: for a search that was asked to stop.
    """
    with store.locked() as is_mine:
        if not is_mine:
            return False
        record = store.record()
        definition = record.definition
        jobs = TrialJobs(store, definition, record.backend, request, submit, say)
        if request is None:
            # No strategy, which may need a package that this process lacks.
            Searcher(store, jobs, lambda trials, free: (), say=say).run()  # noqa: ARG005
            return True
        # An error ends the process and not the search: its words are in the log, and the next searcher goes on.
        Searcher(
            store,
            jobs,
            strategy_for(definition).propose,
            mirror=_Mirror(store, definition, say),
            say=say,
        ).run()
    return True


class _Mirror:
    """Writes the copy for Optuna's dashboard. The search needs no copy, so it goes on without one after an error."""

    def __init__(self, store: TuningStore, definition: TuningDefinition, say: Callable[[str], None]) -> None:
        self._path = store.path / "optuna.journal"
        self._definition = definition
        self._say = say
        self._write: Callable[[Sequence[Trial]], None] | None = None

    def __call__(self, trials: Sequence[Trial]) -> None:
        try:
            if self._write is None:
                self._write = copy_for(self._definition, self._path)
            self._write(judged(self._definition, trials))
        except Exception as error:  # noqa: BLE001 - a full disk, or a file that another release of Optuna wrote
            self._write = lambda _: None
            self._say(f"{self._path.name} is no longer written: {type(error).__name__}: {error}")
