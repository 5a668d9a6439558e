"""Base class for backends whose hosts belong to the user: no service is asked, and no account is billed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.aws.location import is_s3
from herringbone.backends.lifecycle import model_of
from herringbone.backends.on_s3 import send_packed
from herringbone.plan.budget import bill_text, dollars, hourly_of
from herringbone.plan.plan import parse_plan
from herringbone.records.description import output_place
from herringbone.records.index import JobIndex
from herringbone.records.job_events import held_seconds
from herringbone.records.logs import FileLogs
from herringbone.system.interrupt import OnInterrupt
from herringbone_contract.errors import InputError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import EventSource, LogSource
    from herringbone.records.download import Part
    from herringbone.records.home import Home
    from herringbone.records.index import JobRecord


class OwnHostsBackend(ABC):
    """Answers the verbs of `Backend` that need nothing but the index and the job folders below `home`."""

    name: str
    on_interrupt: OnInterrupt = "stop"

    def __init__(self, home: Home) -> None:
        self._home = home
        self._index = JobIndex(home.index)

    @property
    def home(self) -> Home:
        return self._home

    @abstractmethod
    def describe(self, name: str) -> JobRecord:
        """See `Backend.describe`."""

    def completed(self, plan: JobPlan) -> JobPlan:
        return plan

    def request(self, plan: JobPlan) -> dict[str, Any] | None:  # noqa: ARG002 - no service is asked
        return None

    def try_out(self, plan: JobPlan) -> None:  # noqa: ARG002 - no service is asked
        raise UnsupportedError(f"--server: {self.name} has no server that tries a request; leave it out")

    def find(self, name: str, session: object = None) -> None:
        # Raises `JobNotFoundError`: nothing but the index knows jobs of own hosts.
        self._index.get(name)
        if session is not None:
            raise OptionError(f"sagemaker_session: job {name} runs on {self.name}, which asks no service")

    def logs(self, name: str) -> LogSource:
        return FileLogs(map(self._home.job(name).log, self._host_names(name)))

    def events(self, name: str) -> EventSource:
        # Imported here: a job that is only submitted has no reader of events.
        from herringbone.events.source import FileEvents

        return FileEvents(self._home.job(name).all_events(self._host_names(name)))

    def _host_names(self, name: str) -> list[str]:
        return [host["name"] for host in self._index.get(name).plan_dict.get("hosts", ())]

    def cost(self, record: JobRecord) -> float | None:
        hourly = hourly_of(record.plan_dict)
        return None if hourly is None else dollars(hourly, self._held(record))

    def bill(self, name: str) -> str | None:
        record = self._index.get(name)
        if not record.done or (hourly := hourly_of(record.plan_dict)) is None:
            return None
        return f"job {name}: {bill_text(hourly, record.num_hosts, self._held(record))}"

    def _held(self, record: JobRecord) -> float:
        """Return the seconds for which the job has held its hosts."""
        return held_seconds(self._home.job(record.name).job_events, record.ended if record.done else time.time())

    def forget(self, record: JobRecord) -> str:  # noqa: ARG002 - everything of the job is in its folder
        return ""

    def repack(self, name: str, say: Callable[[str], None]) -> Path:
        # Imported here: only this verb needs it.
        from herringbone.backends.results import repack

        try:
            model = repack(self.describe(name), self._home.job(name), say)
        except OSError as error:
            raise InputError(f"job {name} cannot be packed: {error}; its files stay as they are") from error
        record = self.describe(name)
        address = send_packed(parse_plan(record.plan_dict), model)
        self._index.update(name, model=address)
        return model

    def output_of(self, record: JobRecord) -> str | None:
        place = output_place(record.plan_dict, self._home.job(record.name))
        # A folder with disable_output_compression.
        return next((str(path) for path in (place / "output.tar.gz", place / "output") if path.exists()), None)

    def fetch(self, name: str, part: Part, into: Path) -> Path:
        record = self.describe(name)
        if part == "model":
            return self._model(record, into)
        if part == "checkpoints":
            from herringbone.backends.results import fetch_checkpoints

            return fetch_checkpoints(record, self._home.job(name), into)
        output = self.output_of(record)
        if output is None:
            why = "its script wrote nothing into SM_OUTPUT_DATA_DIR" if record.done else "output is packed at its end"
            raise InputError(f"job {name} is {record.status} and has no output: {why}")
        return Path(output)

    def _model(self, record: JobRecord, into: Path) -> Path:
        """Return the packed model: a file or folder of this machine, or one that is fetched from S3."""
        model = model_of(record)
        if not is_s3(model):
            return Path(model)
        packed = self._home.job(record.name).output / model.rpartition("/")[2]
        if packed.exists():
            return packed
        # Imported here: only a model that is in S3 alone is fetched.
        from herringbone.aws.session import AwsSession
        from herringbone.backends.sagemaker.transfer import fetch_artifact
        from herringbone.system.progress import Progress

        return fetch_artifact(AwsSession.of(None), model, into, progress=Progress())
