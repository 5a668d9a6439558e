"""The training jobs of the service: created, described, listed, stopped, deleted, by their owners.

    create  [1] the request is translated and planned: a refusal leaves nothing
            [2] the record claims the name
            [3] the backend submits the job; after an error the record goes
            [4] the record says `submitted`

A service that is killed between [2] and [4] has answered nobody. `recover` decides at the next start whether a
controller has such a job: then it runs on, else it goes, and the client's repeated call creates it again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.registry import backend_for, backend_named
from herringbone.events.source import FileEvents
from herringbone.jobs.home import Home
from herringbone.jobs.index import PENDING, JobIndex, JobRecord, stored_facts
from herringbone.jobs.job import TrainingJob
from herringbone.jobs.removal import remove_job
from herringbone.service import describe, listing, members
from herringbone.service.describe import State
from herringbone.service.errors import ApiError, in_use, invalid, not_found, over_limit
from herringbone.service.links import check_links
from herringbone.service.records import Records, ServiceRecord
from herringbone.service.settings import Settings
from herringbone.service.translate import check_role, message_for_client, translate, wanted_hosts
from herringbone_contract.constants import masked
from herringbone_contract.errors import AwsError, HerringboneError, JobNameError, JobNotFoundError, UsageError
from herringbone_contract.masking import masked_hyperparameters

if TYPE_CHECKING:
    from herringbone.service.keys import AccessKey

_PAGE, _MAX_TAGS = 10, 50
_SORT = {"Name": "TrainingJobName", "CreationTime": "CreationTime", "Status": "TrainingJobStatus"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the caller's key, the region, and the client's id of the call, which its repetitions share."""

    key: AccessKey
    region: str
    invocation: str = ""
    body: bytes = b""

    @property
    def mark(self) -> str:
        """The mark of the call in a record; "" for a client that gives its calls no ids."""
        if not self.invocation:
            return ""
        return hashlib.sha256(self.invocation.encode() + b"\0" + self.body).hexdigest()


class Trainings:
    """The operations on training jobs; each takes the call and the members of its request.

    >>> Trainings(find_home(), settings).list_jobs(call, {"MaxResults": 5})           # doctest: +SKIP
    {'TrainingJobSummaries': []}

    Raises `ApiError`.
    """

    def __init__(self, home: Home, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._settings = settings
        self._clock = clock
        self.records = Records(home)
        self._index = JobIndex(home.index)
        # One creation at a time: the quotas count the jobs that run, and two would count each other's hosts as free.
        self._creating = threading.Lock()
        self.recover()

    def operations(self) -> dict[str, Callable[[Call, dict[str, Any]], dict[str, Any]]]:
        return {
            "CreateTrainingJob": self.create,
            "DescribeTrainingJob": self.describe,
            "StopTrainingJob": self.stop,
            "ListTrainingJobs": self.list_jobs,
            "DeleteTrainingJob": self.delete,
            "UpdateTrainingJob": self.update,
            "AddTags": self.add_tags,
            "ListTags": self.list_tags,
            "DeleteTags": self.delete_tags,
            "Search": self.search,
        }

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
                remove_job(record.name, home=self._home)
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

    def create(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        answer = {"TrainingJobArn": self._settings.arn(call.region, name)}
        translated = translate(request, self._settings)
        check_links(translated, name, self._settings)
        check_role(request["RoleArn"], self._settings)
        tags = _tags(request.get("Tags", ()))
        with self._creating:
            if (known := self.records.get(name)) is not None:
                if known.owner == call.key.name and known.submitted and call.mark and known.call == call.mark:
                    return answer
                raise in_use(f"Training job names must be unique within an account; {name} exists already")
            self._check_limits(call, request)
            try:
                estimator = translated.estimator()
                plan = estimator.plan(translated.inputs or None, job_name=name)
            except (UsageError, AwsError) as error:
                # As at AWS, an address that cannot be read is the request's error. A 500 would be repeated by SDKs.
                raise invalid(message_for_client(str(error), self._settings)) from None
            if plan.options.gpus is not None:
                # A job whose GPUs are taken waits, as at AWS.
                plan = msgspec.structs.replace(plan, queue=True)
            record = ServiceRecord(
                name=name,
                owner=call.key.name,
                region=call.region,
                created=self._clock(),
                request=_stored(request),
                tags=tags,
                call=call.mark,
            )
            self.records.add(record)
            self._submit(
                name, lambda: TrainingJob.submit(plan, backend_for(*{host.instance_type for host in plan.hosts}))
            )
        return answer

    def _submit(self, name: str, submit: Callable[[], object]) -> None:
        try:
            submit()
        except BaseException as error:
            self.records.remove(name)
            if isinstance(error, JobNameError):
                raise in_use(str(error)) from None
            if isinstance(error, UsageError):
                raise invalid(message_for_client(str(error), self._settings)) from None
            if isinstance(error, HerringboneError):
                raise ApiError("InternalFailure", f"{name} could not be started: {error}", 500) from None
            raise
        self.records.change(name, submitted=True)

    def _check_limits(self, call: Call, request: Mapping[str, Any]) -> None:
        """Raise `ApiError` (ResourceLimitExceeded) where the user's quota or a type's hosts are used up."""
        mapping = self._settings.mapping
        running = {row.name for row in self._index.running()}
        records = [record for record in self.records.all() if record.name in running]
        quota = mapping.quota(call.key.name)
        own = sum(record.owner == call.key.name for record in records)
        if quota is not None and own >= quota.jobs:
            raise over_limit(f"{call.key.name} has {own} running training jobs, and may have {quota.jobs}")
        used: dict[str, int] = {}
        for record in records:
            for kind, count in wanted_hosts(record.request):
                pattern = mapping.type_pattern(kind)
                used[pattern] = used.get(pattern, 0) + count
        for kind, count in wanted_hosts(request):
            host_type = mapping.host_type(kind)
            pattern = mapping.type_pattern(kind)
            if host_type is None or host_type.hosts is None:
                continue
            used[pattern] = used.get(pattern, 0) + count
            if used[pattern] > host_type.hosts:
                raise over_limit(
                    f"The account-level service limit '{kind} for training job usage' is {host_type.hosts} Instances, "
                    f"with current utilization of {used[pattern] - count} Instances and a request delta of {count} "
                    "Instances."
                )

    def describe(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._own(call, request["TrainingJobName"])
        return self._description(record, self._row(record))

    def stop(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._own(call, request["TrainingJobName"])
        row = self._row(record)
        if row.done:
            raise invalid(f"The request was rejected because the training job is in status {row.status}.")
        backend_named(row.backend).stop(record.name)
        self.records.change(record.name, modified=self._clock())
        return {}

    def delete(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._own(call, request["TrainingJobName"])
        row = self._row(record)
        if not row.done:
            raise in_use(f"{record.name} is {row.status}; stop it first, and delete it when it is over")
        removal = remove_job(record.name, home=self._home)
        if removal.error:
            raise ApiError("InternalFailure", removal.error, 500)
        self.records.remove(record.name)
        return {}

    def update(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        members.check_fates("UpdateTrainingJob", request)
        record = self._own(call, request["TrainingJobName"])
        return {"TrainingJobArn": self._settings.arn(record.region, record.name)}

    def list_jobs(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        members.check_fates("ListTrainingJobs", request)
        entries = [describe.summary(record, row, self._settings) for record, row in self._all(call)]
        member = _SORT[request.get("SortBy", "CreationTime")]
        filters = {name: value for name, value in request.items() if name not in ("NextToken", "MaxResults")}
        chosen, token = listing.page(
            [entry for entry in entries if listing.listed(request, entry)],
            key=lambda entry: entry[member],
            name="TrainingJobName",
            # SageMaker's default order differs between its pages of documentation; its answers are newest first.
            descending=request.get("SortOrder", "Descending") == "Descending",
            token=request.get("NextToken"),
            size=request.get("MaxResults", _PAGE),
            scope=_scope(call, filters),
        )
        return _page("TrainingJobSummaries", chosen, token)

    def search(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        members.check_fates("Search", request)
        members.check_resource(request["Resource"])
        entries = [{**self._description(record, row), **_tag_list(record.tags)} for record, row in self._all(call)]
        matches = [entry for entry in entries if listing.found(request.get("SearchExpression"), entry)]
        path = request.get("SortBy", "LastModifiedTime")
        filters = {name: value for name, value in request.items() if name not in ("NextToken", "MaxResults")}
        chosen, token = listing.page(
            matches,
            key=lambda entry: _sortable(listing.member(entry, path)),
            name="TrainingJobName",
            descending=request.get("SortOrder", "Descending") == "Descending",
            token=request.get("NextToken"),
            size=request.get("MaxResults", _PAGE),
            scope=_scope(call, filters),
        )
        hits = {"TotalHits": {"Value": len(matches), "Relation": "EqualTo"}}
        return _page("Results", [{"TrainingJob": entry} for entry in chosen], token) | hits

    def add_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._by_arn(call, request["ResourceArn"])
        tags = {**record.tags, **_tags(request["Tags"])}
        if len(tags) > _MAX_TAGS:
            raise invalid(f"{record.name} would have {len(tags)} tags; {_MAX_TAGS} are allowed")
        self.records.change(record.name, tags=tags, modified=self._clock())
        return _tag_list(tags)

    def list_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._by_arn(call, request["ResourceArn"])
        chosen, token = listing.page(
            _tag_list(record.tags)["Tags"],
            key=lambda tag: tag["Key"],
            name="Key",
            descending=False,
            token=request.get("NextToken"),
            size=request.get("MaxResults", _MAX_TAGS),
            scope=_scope(call, {"tags": record.name}),
        )
        return _page("Tags", chosen, token)

    def delete_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        record = self._by_arn(call, request["ResourceArn"])
        gone = set(request["TagKeys"])
        tags = {key: value for key, value in record.tags.items() if key not in gone}
        self.records.change(record.name, tags=tags, modified=self._clock())
        return {}

    def look_at_running(self) -> None:
        """Ask the backends for the jobs that run: some states become known, and ends settled, only when asked for."""
        for row in self._index.running():
            if self.records.get(row.name) is not None:
                self._look(row.name)

    def find(self, call: Call, name: str) -> tuple[ServiceRecord, JobRecord]:
        """Return a job that the caller may see. Raises `ApiError` for all others."""
        record = self._own(call, name)
        return record, self._row(record)

    def visible(self, call: Call) -> Iterator[ServiceRecord]:
        """Yield the records of the jobs that the caller may see, in the region of the call."""
        for record in self.records.all():
            if record.submitted and record.region == call.region and _may_see(call.key, record):
                yield record

    def _own(self, call: Call, name: str) -> ServiceRecord:
        record = self.records.get(name)
        # The same answer for a job of another user: its existence is nobody else's business.
        if record is None or not record.submitted or record.region != call.region or not _may_see(call.key, record):
            raise not_found()
        return record

    def _by_arn(self, call: Call, arn: str) -> ServiceRecord:
        head, _, name = arn.rpartition("/")
        if head != self._settings.arn(call.region, "x").rpartition("/")[0]:
            raise invalid(f"ResourceArn {arn}: this service has tags of training jobs of its account and region alone")
        return self._own(call, name)

    def _all(self, call: Call) -> list[tuple[ServiceRecord, JobRecord]]:
        rows = {row.name: row for row in self._index.all()}
        return [(record, rows[record.name]) for record in self.visible(call) if record.name in rows]

    def _row(self, record: ServiceRecord) -> JobRecord:
        try:
            return self._look(record.name)
        except JobNotFoundError:
            # `herringbone rm` has removed the job.
            self.records.remove(record.name)
            raise not_found() from None

    def _look(self, name: str) -> JobRecord:
        return backend_named(self._index.get(name).backend).describe(name)

    def _description(self, record: ServiceRecord, row: JobRecord) -> dict[str, Any]:
        metrics = stored_facts(row).get("FinalMetricDataList") or ()
        return describe.description(record, row, self._states(record.name), self._settings, metrics=metrics)

    def _states(self, name: str) -> list[State]:
        # Only the job's own file, which is small: those of its hosts have every metric.
        with closing(FileEvents([self._home.job(name).job_events])) as source:
            events = [event for batch in source.rest(None) for event in batch]
        return [
            State(str(event["state"]), float(event["t"]), str(event.get("why") or ""))
            for event in events
            if event["kind"] == "state"
        ]


def _may_see(key: AccessKey, record: ServiceRecord) -> bool:
    return key.sees_all or record.owner == key.name


def _stored(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as it may lie on the disk: secret-sounding values are masked."""
    return {
        **request,
        **({"Environment": masked(request["Environment"])} if "Environment" in request else {}),
        **(
            {"HyperParameters": masked_hyperparameters(request["HyperParameters"])}
            if "HyperParameters" in request
            else {}
        ),
    }


def _tags(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def _tag_list(tags: Mapping[str, str]) -> dict[str, Any]:
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def _page(name: str, entries: Any, token: str | None) -> dict[str, Any]:
    return {name: list(entries)} | ({} if token is None else {"NextToken": token})


def _scope(call: Call, filters: Mapping[str, Any]) -> str:
    text = msgspec.json.encode([call.key.name, call.region, sorted(filters.items())])
    return hashlib.sha256(text).hexdigest()[:16]


def _sortable(value: Any) -> str | float | None:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
