"""The events of a job: those of a service, and the beginnings of its attempts, which its description has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from herringbone.backends.service_events import ServiceEvents
from herringbone.records.index import RESTARTING

if TYPE_CHECKING:
    from herringbone.records.index import JobRecord
    from herringbone_contract.events.format import Event

# As `controller.retry.announcement` begins.
_ANNOUNCED = re.compile(r"attempt (\d+) of \d+: ")


class AttemptEvents(ServiceEvents):
    """Adds a `restart` event to each announced attempt."""

    def _states(self, record: JobRecord) -> Iterator[Event]:
        attempts = json.loads(record.description or "{}").get("Attempts", ())
        for event in super()._states(record):
            yield event
            if event["state"] == RESTARTING and (match := _ANNOUNCED.match(event["why"])):
                number = int(match[1])
                failed = next(each for each in attempts if each["Attempt"] == number - 1)
                restart = {"attempt": number, "why": failed["FailureReason"], "machines": failed["ExcludedHosts"]}
                yield {"kind": "restart", "t": event["t"], **restart}
