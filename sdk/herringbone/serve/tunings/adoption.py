"""The records of jobs and searches that the service has not created: trials, and for an adopter all of the home."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from herringbone.backends.registry import backend_named
from herringbone.plan.plan import lay_out_hosts
from herringbone.plan.request import distribution_of, groups_of
from herringbone.records.description import describe_own_job
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.serve.actions import TRIAL
from herringbone.serve.describe import request_of
from herringbone.serve.records import RecordFolder, Records, ServiceRecord
from herringbone.serve.settings import DEFAULT_REGION, Settings
from herringbone.serve.tunings.members import Look, description, trial_summary
from herringbone.serve.tunings.trials import Trials
from herringbone.trackers.description import describe_job
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.fields import members_of
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.store import TuningStore
from herringbone_contract.errors import HerringboneError

# Members of a training job's AlgorithmSpecification that the one of a search's trials has, too.
_ALGORITHM = ("TrainingImage", "TrainingInputMode", "MetricDefinitions")


class Adopter:
    """Writes the records that are missing.

    >>> Adopter(home, records, index, trials, settings).adopt()             # doctest: +SKIP
    """

    def __init__(self, home: Home, records: Records, index: JobIndex, trials: Trials, settings: Settings) -> None:
        self._home, self._records, self._index = home, records, index
        self._trials, self._settings = trials, settings

    def adopt(self) -> None:
        """Write the records of jobs and searches that have none."""
        adopts = self._settings.adopter is not None
        if adopts and self._home.tunings.is_dir():
            # Searches first: their trials then have their names.
            for folder in self._home.tunings.iterdir():
                self._add(self._records.tunings, folder.name, self._search)
        self._trials.adopt()
        for name in self._index.names() if adopts else ():
            self._add(self._records, name, self._job)

    def _add(self, folder: RecordFolder, name: str, find: Any) -> None:
        if folder.get(name) is not None:
            return
        # One that is removed meanwhile, or of another release's backend, hides no other.
        with suppress(HerringboneError):
            created, request = find(name)
            owner, region = str(self._settings.adopter), self._settings.regions[0]
            members = {"created": created, "request": request, "submitted": True, "adopted": True}
            folder.add(ServiceRecord(name=name, owner=owner, region=region, **members))

    def _job(self, name: str) -> tuple[float, dict[str, Any]]:
        row = self._index.get(name)
        return row.created, request_of(describe_job(row, backend_named(row.backend)))

    def _search(self, name: str) -> tuple[float, dict[str, Any]]:
        return stored_search(self._trials.store(name), self._home)


def stored_search(store: TuningStore, home: Home) -> tuple[float, dict[str, Any]]:
    """Return when a search was created, and the request that it would have had."""
    stored = store.record()
    hosts = lay_out_hosts(groups_of(stored.asked), distribution_of(stored.asked))
    plan = json.dumps({**stored.asked.to_dict(), "hosts": msgspec.to_builtins(hosts)})
    row = JobRecord(name=store.name, backend=stored.backend, plan=plan, created=stored.created, hosts=len(hosts))
    trial = request_of(describe_own_job(row, home.job(store.name), {}, now=stored.created))
    return stored.created, search_request(stored.definition, trial)


def search_request(definition: TuningDefinition, trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that a search would have had, from its definition and what its trials share. Pure.

    >>> search_request(definition, trial)["TrainingJobDefinition"]["StaticHyperParameters"]         # doctest: +SKIP
    {'epochs': '3'}
    """
    algorithm = {name: value for name, value in trial["AlgorithmSpecification"].items() if name in _ALGORITHM}
    shared = {name: value for name, value in trial.items() if name not in ("TrainingJobName", "HyperParameters")}
    values = {name: str(value) for name, value in definition.static.items()}
    return {
        **members_of(definition),
        TRIAL: {**shared, "AlgorithmSpecification": algorithm, "StaticHyperParameters": values},
    }


def describe_search(name: str, home: Home) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a search of a home and its trials as SageMaker's API answers them; times are seconds since 1970.

    >>> describe_search("digits", find_home())[0]["HyperParameterTuningJobStatus"]             # doctest: +SKIP
    'Completed'
    """
    store, settings = TuningStore(home.tuning(name)), Settings(backend="")
    created, request = stored_search(store, home)
    record = ServiceRecord(name=name, owner="", region=DEFAULT_REGION, created=created, request=request)
    look = Look(record, OwnTuning(store, home).look())
    return description(look, settings), [trial_summary(look, trial, settings) for trial in look.search.trials]
