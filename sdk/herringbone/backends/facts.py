"""Facts about a job that `describe` shows and no other column of its row has: the image, the commit, the versions.

column `facts`      what the client knows: the image that runs, the commit of the code
output/versions.json    what the first host reports: its Python, Herringbone and framework
the events          the last value of each metric, and what was measured of a prediction
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from herringbone.backends.rehearsed import rehearsed
from herringbone.events.comparison import as_members, compare, prediction_of
from herringbone.events.live import LiveView
from herringbone.events.metrics import final_metrics, job_metrics
from herringbone.events.source import FileEvents
from herringbone.events.view import JobView
from herringbone.records.differences import settings_of
from herringbone.records.index import JobIndex, JobRecord, stored_facts
from herringbone.records.standstill import standstill
from herringbone.slots.places import QUEUE, queue_members
from herringbone_contract.errors import HerringboneError
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE
from herringbone_contract.safe_tree import read_file

if TYPE_CHECKING:
    from herringbone.code.commit import CommitQuery
    from herringbone.protocols.backend import Backend
    from herringbone.records.home import JobFolder

_VERSIONS_BYTES = 4096


def add_facts(index: JobIndex, name: str, facts: Mapping[str, Any]) -> None:
    """Add facts to a job's row; an index that cannot be written loses them, and the job goes on."""
    if not facts:
        return
    with suppress(HerringboneError):
        index.update(name, facts=json.dumps({**stored_facts(index.get(name)), **facts}))


def note_commit(query: CommitQuery, index: JobIndex, name: str) -> None:
    """Add the commit of the code once git has answered.

    In a thread: the job runs, and Ctrl-C must reach the caller, who waits for the job.
    """

    def note() -> None:
        if code := query.answer():
            add_facts(index, name, {"Code": code})

    Thread(target=note).start()


def find_facts(record: JobRecord, backend: Backend) -> dict[str, Any]:
    """Return all facts about a job of own hosts. Those of a job that is over are stored, so they are found once."""
    facts = stored_facts(record)
    if "FinalMetricDataList" in facts:
        return facts
    if queue := queue_members(backend.home, record):
        facts[QUEUE] = queue
    if text := standstill(record, backend.home):
        facts["Standstill"] = text
    if versions := versions_in(backend.home.job(record.name)):
        facts["Versions"] = versions
    if text := rehearsed(record, backend.home):
        facts["Rehearsed"] = text
    with suppress(HerringboneError):
        # The events of a job that runs on other machines would have to travel first.
        if record.done or _has_files(backend, record.name):
            facts["FinalMetricDataList"] = final_metrics(job_metrics(record, backend))
            if prediction := prediction_of(record.plan_dict):
                facts["Prediction"] = as_members(compare(prediction, _view(record, backend)))
    if record.done:
        add_facts(JobIndex(backend.home.index), record.name, facts)
    return facts


def find_service_facts(record: JobRecord, backend: Backend) -> dict[str, Any]:
    """Return what this machine knows about a job that a service describes, with its prediction.

    The job's events are lines of a log far away, so they are read once, after its end.
    """
    facts = stored_facts(record)
    prediction = prediction_of(record.plan_dict)
    if prediction is None or "Prediction" in facts:
        return facts
    facts["Prediction"] = as_members(compare(prediction, JobView()))
    if record.done:
        # A log that cannot be read now may be readable at the next look.
        with suppress(HerringboneError):
            facts["Prediction"] = as_members(compare(prediction, _view(record, backend)))
            add_facts(JobIndex(backend.home.index), record.name, {"Prediction": facts["Prediction"]})
    return facts


def settings_of_job(backend: Backend, name: str) -> dict[str, str]:
    """Return all settings of a job, with its image, the commit of its code and its versions, without its events."""
    record = backend.describe(name)
    facts = stored_facts(record)
    versions = {} if "Versions" in facts else {"Versions": versions_in(backend.home.job(name))}
    return settings_of(record.plan_dict, facts | versions)


def _view(record: JobRecord, backend: Backend) -> JobView:
    with closing(LiveView(backend.events(record.name))) as live:
        return live.rest(record.ended) if record.done else live.read()


def _has_files(backend: Backend, name: str) -> bool:
    with closing(backend.events(name)) as source:
        return isinstance(source, FileEvents)


def versions_in(folder: JobFolder) -> dict[str, str]:
    """Return what the first host of a job reports about its packages, as {"Python": "3.11.7"}; empty without it."""
    hosts = folder.path / "hosts"
    # The script can write there, too.
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        base: Path = next(iter(sorted(hosts.iterdir(), key=_number_of))) / "ml"
        versions = json.loads(read_file(base, str(INSIDE.versions), limit=_VERSIONS_BYTES))
        return {printable(str(name)): printable(str(version)) for name, version in versions.items()}
    return {}


def _number_of(host: Path) -> tuple[int, str]:
    # algo-10 comes after algo-2.
    return len(host.name), host.name
