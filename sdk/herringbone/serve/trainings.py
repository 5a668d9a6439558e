"""The training jobs of the service: created, described, listed, stopped, deleted, by their owners.

    create  [1] the request is translated: a refusal leaves nothing
            [2] limits and running jobs allow the job; the record claims its name and its places: one job at a time
            [3] the job is planned, and the backend submits it; after an error the record goes
            [4] the record says `submitted`

[3] takes as long as disks and machines do, so only jobs of the same user wait for each other there. `Admission` has [2]
to [4], for tuning jobs, too.

A service that is killed between [2] and [4] has answered nobody. `recover` decides at the next start whether a
controller has such a job: then it runs on, else it goes, and the client's repeated call creates it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.api.job import TrainingJob
from herringbone.api.planning import backend_of, plan_request
from herringbone.backends.facts import find_facts
from herringbone.backends.registry import backend_named
from herringbone.backends.removal import remove_job
from herringbone.events.kinds import State
from herringbone.events.live import LiveView
from herringbone.events.source import FileEvents
from herringbone.records.home import Home
from herringbone.records.index import PENDING, JobIndex, JobRecord
from herringbone.serve import describe, listing
from herringbone.serve.calls import Call, is_repeated, may_see, name_taken, new_record, page_of, stored_request
from herringbone.serve.errors import ApiError, in_use, invalid, not_found
from herringbone.serve.limits import check_limits
from herringbone.serve.links import check_held, check_links, held_by
from herringbone.serve.records import RecordFolder, Records, ServiceRecord
from herringbone.serve.settings import Settings
from herringbone.serve.translate import check_role, refused, translate
from herringbone.serve.tunings.adoption import Adopter
from herringbone.serve.tunings.trials import Trials, use_of
from herringbone_contract.errors import AwsError, HerringboneError, JobNotFoundError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.plan.request import JobRequest
    from herringbone.protocols.backend import Backend


class Trainings:
    """The actions on training jobs; each takes the call and the members of its request.

    >>> Trainings(find_home(), settings).list_training_jobs(call, {"MaxResults": 5})           # doctest: +SKIP
    {'TrainingJobSummaries': []}

    Raises `ApiError`.
    """

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        plan: Callable[[JobRequest, Backend, str], JobPlan] = plan_request,
    ) -> None:
        self.home = home
        self.settings = settings
        self.clock = clock
        self.plan = plan
        self.records = Records(home)
        self.index = JobIndex(home.index)
        self.trials = Trials(home, self.records, self.index)
        self.adopt = Adopter(home, self.records, self.index, self.trials, settings).adopt
        self.admission = Admission(self)
        self.recover()

    def recover(self) -> None:
        """Settle the submissions that an earlier service did not end."""
        for record in self.records.all():
            if record.submitted:
                continue
            try:
                row = self._settled_start(record.name)
            except JobNotFoundError:
                self.records.remove(record.name)
                continue
            if row.done and row.started is None and row.failure is not None:
                # No rank of it ever ran, and nobody was told that it exists.
                remove_job(record.name, home=self.home)
                self.records.remove(record.name)
            else:
                self.records.change(record.name, submitted=True)

    def _settled_start(self, name: str) -> JobRecord:
        """Return a job's row once it is clear whether its controller got the job: it trains, or is over."""
        deadline = time.monotonic() + 60
        row = self._look(name)
        while not row.done and row.started is None and row.secondary_status != PENDING and time.monotonic() < deadline:
            time.sleep(0.05)
            row = self._look(name)
        return row

    def create_training_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        translated = translate(request, self.settings)
        check_role(request["RoleArn"], self.settings)
        held = held_by(translated, name, self.settings)
        record = new_record(call, name, stored_request(request), request.get("Tags", ()), self.clock(), held)
        self.admission.admit(call, record, self.records, partial(self._submit, name, translated))
        return {"TrainingJobArn": self.settings.arn(call.region, name)}

    def _submit(self, name: str, translated: JobRequest) -> None:
        # Not before the record holds the places: until then others may change them.
        check_links(translated, name, self.settings)
        # A job whose GPUs are taken waits, as at AWS.
        waiting = msgspec.structs.replace(translated, queue=translated.options.gpus is not None)
        backend = backend_of(waiting)
        try:
            plan = self.plan(waiting, backend, name)
        except AwsError as error:
            # As at AWS, an address that cannot be read is the request's error. A 500 would be repeated by SDKs.
            raise refused(error, self.settings) from None
        TrainingJob.submit(plan, backend)

    def describe_training_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        return self._description(*self.find(call, request["TrainingJobName"]))

    def stop_training_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record, row = self.find(call, request["TrainingJobName"])
        if row.done:
            raise invalid(f"The request was rejected because the training job is in status {row.status}.")
        backend_named(row.backend).stop(record.name)
        self.records.change(record.name, modified=self.clock())
        return {}

    def delete_training_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record, row = self.find(call, request["TrainingJobName"])
        if not row.done:
            raise in_use(f"{record.name} is {row.status}; stop it first, and delete it when it is over")
        removal = remove_job(record.name, home=self.home)
        if removal.error:
            raise ApiError("InternalFailure", removal.error, 500)
        self.records.remove(record.name)
        return {}

    def update_training_job(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self.own(call, request["TrainingJobName"])
        return {"TrainingJobArn": self.settings.arn(record.region, record.name)}

    def list_training_jobs(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        entries = [describe.summary(record, row, self.settings) for record, row in self._rows(call)]
        key = listing.sorted_by("TrainingJob", request.get("SortBy", "CreationTime"))
        entries = [entry for entry in entries if listing.listed(request, entry)]
        # SageMaker's default order differs between its pages of documentation; its answers are newest first.
        return page_of(call, request, "TrainingJobSummaries", entries, key=key, name="TrainingJobName")

    def look_at_running(self) -> None:
        """Ask the backends for the jobs that run: some states become known, and ends settled, only when asked for."""
        self.adopt()
        for row in self.index.running():
            if self.records.get(row.name) is not None:
                self._look(row.name)

    def find(self, call: Call, name: str) -> tuple[ServiceRecord, JobRecord]:
        """Return a job that the caller may see. Raises `ApiError` for all others."""
        record = self.own(call, name)
        try:
            return record, self._look(name)
        except JobNotFoundError:
            # `herringbone rm` has removed the job.
            self.records.remove(name)
            raise not_found() from None

    def visible(self, call: Call) -> Iterator[ServiceRecord]:
        """Return the records of the jobs that the caller may see, in the region of the call."""
        # Also the trials that a search has started since the last look.
        self.adopt()
        return (record for record in self.records.all() if may_see(record, call))

    def own(self, call: Call, name: str) -> ServiceRecord:
        """Return the record of a job that the caller may see. Raises `ApiError` for all others."""
        if self.records.get(name) is None:
            self.adopt()
        record = self.records.get(name)
        # The same answer for a job of another user: its existence is nobody else's business.
        if may_see(record, call):
            return record
        raise not_found()

    def descriptions(self, call: Call) -> Iterator[tuple[ServiceRecord, dict[str, Any]]]:
        """Yield the jobs that the caller may see, each with what DescribeTrainingJob answers."""
        return ((record, self._description(record, row)) for record, row in self._rows(call))

    def _rows(self, call: Call) -> list[tuple[ServiceRecord, JobRecord]]:
        rows = {row.name: row for row in self.index.all()}
        return [(record, rows[record.name]) for record in self.visible(call) if record.name in rows]

    def _look(self, name: str) -> JobRecord:
        return backend_named(self.index.get(name).backend).describe(name)

    def _description(self, record: ServiceRecord, row: JobRecord) -> dict[str, Any]:
        metrics = find_facts(row, backend_named(row.backend)).get("FinalMetricDataList") or ()
        return describe.description(record, row, self._states(record.name), self.settings, metrics=metrics)

    def _states(self, name: str) -> list[State]:
        # Only the job's own file, which is small: those of its hosts have every metric.
        with closing(LiveView(FileEvents([self.home.job(name).job_events]))) as live:
            return list(live.read().states)


class Admission:
    """The way of a new job into the service, the same for training jobs and tuning jobs."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings
        # Held while limits are checked and a name is claimed: two jobs would count each other's hosts as free.
        self._claiming = threading.Lock()
        # Creations of one user come one after the other, and never wait for those of another.
        self._turns: dict[str, threading.Lock] = {}

    def admit(
        self,
        call: Call,
        record: ServiceRecord,
        folder: RecordFolder,
        start: Callable[[], object],
        noun: str = "Training",
    ) -> None:
        """Claim the name and the places of a job, and start it; a repeated call starts nothing.

        After an error of `start` the record is gone. Raises `ApiError`; `noun` says which kind of job it is about.
        """
        name = record.name
        # `setdefault` of a dict is atomic: two threads get the same lock.
        with self._turns.setdefault(call.key.name, threading.Lock()):
            if is_repeated(folder.get(name), call, noun):
                return
            with self._claiming:
                if folder is self._trainings.records and self._trainings.trials.owns_name(name):
                    raise in_use(f"{name} is the name of a trial of a hyperparameter tuning job; choose another one")
                running = self._running()
                check_limits(use_of(record), map(use_of, running), self._trainings.settings.mapping)
                check_held(record.held, (other.held for other in running))
                if not folder.add(record):
                    raise name_taken(name, noun)
            try:
                start()
            except BaseException as error:
                folder.remove(name)
                if isinstance(error, HerringboneError):
                    raise refused(error, self._trainings.settings) from None
                raise
            folder.change(name, submitted=True)

    def _running(self) -> list[ServiceRecord]:
        """Return what runs or starts at this moment: training jobs, and tuning jobs with all of their trials."""
        records = self._trainings.records
        running = {row.name for row in self._trainings.index.running()}
        searches = self._trainings.trials.running()
        jobs = [
            record
            for record in records.all()
            if record.tuning not in searches and (record.name in running or not record.submitted)
        ]
        return jobs + list(searches.values())
