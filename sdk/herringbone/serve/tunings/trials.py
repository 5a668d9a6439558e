"""The trials of the service's tuning jobs: training jobs that a searcher submits, and that the service then has.

A searcher is a process of its own, which goes on while no service runs. It submits trials as `fit` does, so the service
learns of them from the search's folder, and writes a record for each: from then on a trial is a training job as any
other, with the owner and the tags of its tuning job.
"""

from __future__ import annotations

import re

from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.serve.limits import Use
from herringbone.serve.records import Records, ServiceRecord
from herringbone.serve.translate import wanted_hosts
from herringbone.serve.tunings.members import shared_request, trial_request
from herringbone.tuner.store import TuningStore
from herringbone_contract.errors import HerringboneError

# `trial_job_name` makes them.
_TRIAL_NAME = re.compile(r"(.+)-\d{3,}")


class Trials:
    """The trials of all tuning jobs of the service; several threads may use it.

    >>> Trials(home, records, index).owns_name("digits-001")             # doctest: +SKIP
    True
    """

    def __init__(self, home: Home, records: Records, index: JobIndex) -> None:
        self._home = home
        self._records = records
        self._index = index
        # Tuning jobs that are over, whose trials all have records: nothing about them changes any more.
        self._settled: set[str] = set()

    def store(self, name: str) -> TuningStore:
        return TuningStore(self._home.tuning(name))

    def owns_name(self, name: str) -> bool:
        """Report whether a name is one of a tuning job's trials, which a search would take for its own."""
        match = _TRIAL_NAME.fullmatch(name)
        return match is not None and self._records.tunings.get(match[1]) is not None

    def adopt(self, only: str | None = None) -> None:
        """Write the records of trials that have none; of one tuning job, or of all that are not settled."""
        waiting = [record for record in self._records.tunings.all() if record.name not in self._settled]
        waiting = [record for record in waiting if only in (None, record.name)]
        if not waiting:
            return
        names = set(self._index.names())
        for record in waiting:
            store = self.store(record.name)
            try:
                # The state first: when it says that the search is over, all trials have been written.
                done = record.submitted and store.state().done
                self._adopt(record, store, names)
            except HerringboneError:
                # Of a creation that is under way, or a folder that `herringbone` is removing.
                continue
            if done:
                self._settled.add(record.name)

    def forget(self, name: str) -> None:
        """Let a name be used for a new tuning job."""
        self._settled.discard(name)

    def running(self) -> dict[str, ServiceRecord]:
        """Return the tuning jobs that are not over, by their names."""
        return {
            record.name: record
            for record in self._records.tunings.all()
            if record.name not in self._settled and not (record.submitted and self.store(record.name).state().done)
        }

    def _adopt(self, tuning: ServiceRecord, store: TuningStore, names: set[str]) -> None:
        trials = [trial for trial in store.trials() if trial.job in names and self._records.get(trial.job) is None]
        if not trials:
            return
        definition = store.record().definition
        for trial in trials:
            self._records.add(
                ServiceRecord(
                    name=trial.job,
                    owner=tuning.owner,
                    region=tuning.region,
                    created=trial.proposed,
                    request=trial_request(tuning.request, definition, trial),
                    tags=tuning.tags,
                    submitted=True,
                    tuning=tuning.name,
                    held=tuning.held,
                )
            )


def use_of(record: ServiceRecord) -> Use:
    """Return what a job uses; of a tuning job while it searches, all of the trials that may run at once."""
    if (config := record.request.get("HyperParameterTuningJobConfig")) is None:
        return Use(record.owner, wanted_hosts(record.request))
    limits = config["ResourceLimits"]
    parallel = min(limits["MaxParallelTrainingJobs"], limits.get("MaxNumberOfTrainingJobs", 10_000))
    return Use(record.owner, wanted_hosts(shared_request(record.request)), parallel)
