"""The tags of training jobs and tuning jobs, and the search for both."""

from __future__ import annotations

from typing import Any

from herringbone.serve import listing
from herringbone.serve.calls import Call, may_see, page_of, sortable, tag_list, tags_of
from herringbone.serve.errors import ApiError, invalid, not_found
from herringbone.serve.records import RecordFolder, ServiceRecord
from herringbone.serve.settings import TRAINING_JOB, TUNING_JOB
from herringbone.serve.trainings import Trainings
from herringbone.serve.tuning_jobs import Tunings

_MAX_TAGS = 50


class Catalog:
    """The actions on jobs of both kinds; each takes the call and the members of its request.

    >>> Catalog(trainings, tunings).list_tags(call, {"ResourceArn": arn})           # doctest: +SKIP
    {'Tags': []}

    Raises `ApiError`.
    """

    def __init__(self, trainings: Trainings, tunings: Tunings) -> None:
        self._trainings, self._tunings = trainings, tunings

    def add_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        folder, record = self._find(call, request["ResourceArn"])
        tags = {**record.tags, **tags_of(request["Tags"])}
        if len(tags) > _MAX_TAGS:
            raise invalid(f"{record.name} would have {len(tags)} tags; {_MAX_TAGS} are allowed")
        folder.change(record.name, tags=tags, modified=self._trainings.clock())
        return tag_list(tags)

    def list_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        _, record = self._find(call, request["ResourceArn"])
        tags = tag_list(record.tags)["Tags"]
        return page_of(
            call, request, "Tags", tags, key=lambda tag: tag["Key"], name="Key", order="Ascending", size=_MAX_TAGS
        )

    def delete_tags(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        folder, record = self._find(call, request["ResourceArn"])
        gone = set(request["TagKeys"])
        tags = {key: value for key, value in record.tags.items() if key not in gone}
        folder.change(record.name, tags=tags, modified=self._trainings.clock())
        return {}

    def search(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        kind = request["Resource"]
        jobs = {
            "TrainingJob": self._trainings.descriptions,
            "HyperParameterTuningJob": self._tunings.descriptions,
        }
        if kind not in jobs:
            known = " and ".join(jobs)
            raise ApiError("UnsupportedOperation", f"Search: {kind} cannot be searched for here; {known} can")
        entries = ({**description, **tag_list(record.tags)} for record, description in jobs[kind](call))
        matches = [entry for entry in entries if listing.found(request.get("SearchExpression"), entry)]
        path = request.get("SortBy", "LastModifiedTime")
        page = page_of(
            call,
            request,
            "Results",
            matches,
            key=lambda entry: sortable(listing.member(entry, path)),
            name=f"{kind}Name",
        )
        hits = {"TotalHits": {"Value": len(matches), "Relation": "EqualTo"}}
        return {**page, "Results": [{kind: entry} for entry in page["Results"]], **hits}

    def _find(self, call: Call, arn: str) -> tuple[RecordFolder, ServiceRecord]:
        settings, records = self._trainings.settings, self._trainings.records
        _, _, name = arn.rpartition("/")
        if arn == settings.arn(call.region, name, TRAINING_JOB):
            return records, self._trainings.own(call, name)
        if arn == settings.arn(call.region, name, TUNING_JOB):
            record = records.tunings.get(name)
            if may_see(record, call):
                return records.tunings, record
            raise not_found()
        raise invalid(
            f"ResourceArn {arn}: this service has tags of training jobs and tuning jobs of its account and region alone"
        )
