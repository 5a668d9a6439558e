"""Search with this machine's parts: the store, the backend of the plan, and the strategy of the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone.tuner.searcher.runner import Searcher
from herringbone.tuner.searcher.trial_jobs import TrialJobs
from herringbone.tuner.strategies.choose import copy_for, strategy_for
from herringbone.tuner.strategies.early_stopping import judged

if TYPE_CHECKING:
    from herringbone.planning.plan import JobPlan
    from herringbone.tuner.store import TuningStore


def search(store: TuningStore, plan: JobPlan | None, *, say: Callable[[str], None]) -> bool:
    """Search to the end, unless another process does; return whether this process did.

    Without a plan, no job can be started: for a search that was asked to stop.
    """
    with store.locked() as is_mine:
        if not is_mine:
            return False
        record = store.record()
        definition = record.definition
        jobs = TrialJobs(store, definition, record.backend, plan)
        if plan is None:
            # No strategy, which may need a package that this process lacks.
            Searcher(store, jobs, lambda trials, free: (), say=say).run()  # noqa: ARG005
            return True
        # An error ends the process and not the search: its words are in the log, and the next searcher goes on.
        copy = copy_for(definition, store.path / "optuna.journal")
        Searcher(
            store,
            jobs,
            strategy_for(definition).propose,
            mirror=lambda trials: copy(judged(definition, trials)),
            say=say,
        ).run()
    return True
