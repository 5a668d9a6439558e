"""The tuning jobs of the service: created, described, listed, stopped, deleted, by their owners.

    create  [1] the request is read and its first trial planned: a refusal leaves nothing
            [2] the limits allow all trials that may run at once, and the record claims the name: one job at a time
            [3] `create_tuning` copies the code, writes the search's folder and starts its searcher
            [4] the record says `submitted`

The searcher is a process of its own, so a search goes on while no service runs, and its secrets are in no file. If its
process is gone, `look_at_running` starts it again, as `HyperparameterTuner.wait` does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from herringbone.api.tuning.creation import create_tuning
from herringbone.plan.request import JobRequest
from herringbone.serve import listing
from herringbone.serve.calls import Call, may_see, new_record, page_of, tag_list
from herringbone.serve.errors import ApiError, in_use, invalid
from herringbone.serve.links import check_links, held_by
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import TUNING_JOB
from herringbone.serve.trainings import Trainings
from herringbone.serve.translate import check_role, refused, translate
from herringbone.serve.tunings import members
from herringbone.serve.tunings.members import Look, check_complete, definition_for, shared_request, stored_tuning
from herringbone.system.disk import remove
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import STOPPING
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.store import TuningState
from herringbone.tuner.strategies.warm_start import prior_trials
from herringbone_contract.errors import AwsError, HerringboneError, JobNameError, UsageError

_NAME = "HyperParameterTuningJobName"
_START_SECONDS = 10.0


class Tunings:
    """The actions on tuning jobs; each takes the call and the members of its request.

    >>> Tunings(trainings).list_hyper_parameter_tuning_jobs(call, {})           # doctest: +SKIP
    {'HyperParameterTuningJobSummaries': []}

    Raises `ApiError`.
    """

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._settings = trainings.settings
        self._records = trainings.records.tunings
        self._trials = trainings.trials
        self._searchers = Searchers(trainings)
        self.recover()

    def recover(self) -> None:
        """Settle the creations that an earlier service did not end: nobody was told that these tuning jobs exist."""
        for record in self._records.all():
            if record.submitted:
                continue
            if self._has_begun(record.name):
                self._records.change(record.name, submitted=True)
            else:
                remove(self._trials.store(record.name).path)
                self._records.remove(record.name)

    def _has_begun(self, name: str) -> bool:
        """Report whether a searcher got the tuning job: it searches, or has trials."""
        store = self._trials.store(name)
        deadline = time.monotonic() + _START_SECONDS
        while store.exists:
            if store.is_searched or store.trials() or store.state().done:
                return True
            if time.monotonic() > deadline or not store.log.exists():
                return False
            time.sleep(0.05)
        return False

    def create_hyper_parameter_tuning_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        name = request[_NAME]
        check_complete(request)
        shared = shared_request(request)
        check_role(shared.get("RoleArn", ""), self._settings)
        translated = translate(shared, self._settings)
        definition = self._with_results(call, definition_for(request, secrets.randbelow(2**31)))
        held = held_by(translated, name, self._settings, searches=True)
        now = self._trainings.clock()
        record = new_record(call, name, stored_tuning(request), request.get("Tags", ()), now, held)
        start = partial(self._submit, translated, definition, record)
        self._trainings.admission.admit(call, record, self._records, start, "Hyperparameter tuning")
        return {"HyperParameterTuningJobArn": self._settings.arn(call.region, name, TUNING_JOB)}

    def _submit(self, translated: JobRequest, definition: TuningDefinition, record: ServiceRecord) -> None:
        name = record.name
        self._trials.forget(name)
        try:
            check_links(translated, name, self._settings)
            self._searchers.handles[name] = create_tuning(
                translated,
                definition,
                metrics=(),
                tags=tag_list(record.tags)["Tags"],
                no_links_below=self._settings.buckets,
            )
        except BaseException as error:
            # A folder without a searcher, which would never end.
            if not isinstance(error, JobNameError) and self._trials.store(name).exists:
                with suppress(OSError):
                    remove(self._trials.store(name).path)
            if isinstance(error, AwsError):
                raise refused(error, self._settings) from None
            raise

    def _with_results(self, call: Call, definition: TuningDefinition) -> TuningDefinition:
        """Return the definition with the results of the parents, which the caller must see and which must be over."""
        if not definition.parents:
            return definition
        parents = {}
        for name in definition.parents:
            record = self._records.get(name)
            if record is None or not may_see(record, call):
                raise invalid(f"WarmStartConfig: there is no hyperparameter tuning job {name}")
            search = self._look(record).search
            if not search.done:
                raise invalid(f"WarmStartConfig: {name} is {search.status}; wait for its end")
            parents[name] = (search.definition, [trial.trial() for trial in search.trials])
        try:
            return msgspec.structs.replace(definition, priors=prior_trials(definition, parents))
        except UsageError as error:
            raise refused(error, self._settings) from None

    def describe_hyper_parameter_tuning_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        return members.description(self._look(self._own(call, request[_NAME])), self._settings)

    def stop_hyper_parameter_tuning_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._own(call, request[_NAME])
        search = self._look(record).search
        if search.done:
            raise invalid(
                f"The request was rejected because the hyperparameter tuning job is in status {search.status}."
            )
        if search.status != STOPPING:
            self._records.change(record.name, modified=self._trainings.clock())
            self._trials.store(record.name).ask_to_stop()
            # If its searcher is gone, another one stops the trials: that needs no secrets.
            self._searchers.handle(record.name).resume()
        return {}

    def delete_hyper_parameter_tuning_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._own(call, request[_NAME])
        search = self._look(record).search
        if not search.done:
            raise in_use(f"{record.name} is {search.status}; stop it first, and delete it when it is over")
        # Its training jobs stay, as at AWS, and need records of their own from now on.
        self._trials.adopt(record.name)
        # The record goes last: a call that fails here can be repeated.
        try:
            remove(self._trials.store(record.name).path)
        except OSError as error:
            raise ApiError("InternalFailure", f"{record.name} cannot be removed: {error.strerror}", 500) from None
        self._records.remove(record.name)
        self._trials.forget(record.name)
        return {}

    def list_hyper_parameter_tuning_jobs(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        entries = [members.summary(look, self._settings) for look in self._looks(call)]
        entries = [entry for entry in entries if listing.listed(request, entry, "HyperParameterTuningJob")]
        key = listing.sorted_by("HyperParameterTuningJob", request.get("SortBy", "Name"))
        # By name, ascending: SageMaker's defaults for lists of tuning jobs.
        return page_of(
            call, request, "HyperParameterTuningJobSummaries", entries, key=key, name=_NAME, order="Ascending"
        )

    def list_training_jobs_for_hyper_parameter_tuning_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        look = self._look(self._own(call, request[_NAME]))
        entries = [members.trial_summary(look, trial, self._settings) for trial in look.search.trials]
        entries = [entry for entry in entries if listing.listed(request, entry)]
        key = listing.sorted_by("TrainingJob", request.get("SortBy", "Name"))
        if request.get("SortBy") == "FinalObjectiveMetricValue":
            key = members.objective_value
            # As at AWS, jobs without an objective are not in this list.
            entries = [entry for entry in entries if key(entry) is not None]
        name, order = "TrainingJobName", "Ascending"
        return page_of(call, request, "TrainingJobSummaries", entries, key=key, name=name, order=order)

    def look_at_running(self) -> None:
        """Start the searchers again that are gone without having ended their searches."""
        self._searchers.look()

    def descriptions(self, call: Call) -> Iterator[tuple[ServiceRecord, dict[str, Any]]]:
        """Yield the tuning jobs that the caller may see, each with what its description answers."""
        return ((look.record, members.description(look, self._settings)) for look in self._looks(call))

    def _looks(self, call: Call) -> list[Look]:
        looks = []
        self._trainings.adopt()
        for record in self._records.all():
            # One that is being deleted has no folder any more.
            with suppress(HerringboneError, ApiError):
                if may_see(record, call):
                    looks.append(self._look(record))
        return looks

    def _look(self, record: ServiceRecord) -> Look:
        handle, store = self._searchers.handle(record.name), self._trials.store(record.name)
        if not store.exists:
            # Somebody has removed the folder by hand.
            self._records.remove(record.name)
            raise _not_found(record.name)
        search = handle.look()
        created = {
            prior.job: trial.created
            for prior in search.definition.priors
            if (trial := self._trainings.records.get(prior.job)) is not None
        }
        # A trial is written down before its job exists, and what is listed must be there to members.
        self._trials.adopt(record.name)
        known = self._trainings.records.get
        trials = [trial for trial in search.trials if trial.done or known(trial.job) is not None]
        return Look(record, replace(search, trials=trials), created)

    def _own(self, call: Call, name: str) -> ServiceRecord:
        if self._records.get(name) is None:
            self._trainings.adopt()
        record = self._records.get(name)
        # The same answer for a job of another user: its existence is nobody else's business.
        if may_see(record, call):
            return record
        raise _not_found(name)


class Searchers:
    """The processes that search; those that are gone without having ended their searches are started again."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._records, self._trials = trainings.records.tunings, trainings.trials
        # Handles of searches that run: those that this service created have the secrets of their trials.
        self.handles: dict[str, OwnTuning] = {}

    def handle(self, name: str) -> OwnTuning:
        known = self.handles.get(name)
        return OwnTuning(self._trials.store(name), self._trainings.home) if known is None else known

    def look(self) -> None:
        """Start the searchers again that are gone without having ended their searches."""
        for record in self._records.all():
            # Whoever waits for an adopted one starts its searcher again, and may have its secrets.
            if not record.submitted or record.adopted:
                continue
            store = self._trials.store(record.name)
            if store.state().done:
                self.handles.pop(record.name, None)
                continue
            handle = self.handles.setdefault(record.name, self.handle(record.name))
            try:
                trouble = handle.keep_searched(store.trials())
            except UsageError as error:
                # Its secrets went with the process that had them. A search that is to stop needs none.
                self._records.change(record.name, problem=str(error))
                store.ask_to_stop()
                handle.resume()
                continue
            if not trouble:
                continue
            with store.locked() as is_mine:
                if is_mine and not store.state().done:
                    store.set_state(TuningState(status="Failed", reason=trouble, ended=self._trainings.clock()))


def _not_found(name: str) -> ApiError:
    return ApiError("ResourceNotFound", f"Amazon SageMaker can't find a tuning job with the name {name}.")
