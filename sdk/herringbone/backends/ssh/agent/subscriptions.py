"""The agent's subscriptions: rows and logs that a client follows, which the agent sends whenever they change.

follow(job, host)          -> {"row": ..., "record": ..., "left": ..., "now": ...} for each change of the row
follow_log(number, ...)    -> {"log": number} with the new bytes of the log
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.agent.process_host import result_folders
from herringbone.records.index import TERMINAL, JobRecord
from herringbone.records.standstill import standstill
from herringbone_contract.constants import MAX_RECORD_BYTES
from herringbone_contract.paths import INSIDE
from herringbone_contract.safe_tree import read_file

if TYPE_CHECKING:
    from herringbone.records.home import Home

_READ_BYTES = 1 << 20


class Subscriptions:
    """Sends changes with `send`; `describe` returns the present row of a job.

    >>> subscriptions = Subscriptions(home, describe, send)               # doctest: +SKIP
    >>> subscriptions.follow("digits-1", "algo-1")                        # doctest: +SKIP
    >>> subscriptions.publish()                                           # doctest: +SKIP
    True
    """

    def __init__(
        self, home: Home, describe: Callable[[str], JobRecord], send: Callable[[Message, bytes], None]
    ) -> None:
        self._home = home
        self._describe = describe
        self._send = send
        # job -> its host on this machine, until the job's last row was sent
        self._hosts: dict[str, str] = {}
        # job -> the row that was sent last, as JSON
        self._sent_rows: dict[str, str] = {}
        # number of the client's request -> the log and the next byte to send
        self._logs: dict[int, tuple[Path, int]] = {}

    @property
    def is_active(self) -> bool:
        """Report whether there is something to follow."""
        return bool(self._hosts or self._logs)

    def follow(self, job: str, host: str) -> None:
        """Send the job's row now and after each change, until the job is over."""
        self._hosts[job] = host
        # A client that asks again has lost what was sent before.
        self._sent_rows.pop(job, None)

    def follow_log(self, number: int, log: Path, offset: int) -> None:
        """Send the bytes of a log from `offset` on, now and as they come."""
        self._logs[number] = (log, offset)

    def publish(self) -> bool:
        """Send what has changed; return whether anything has."""
        changed = False
        # Read the rows before the logs, and send them after: the last lines of a host then precede its last row.
        rows = [self._row(job, host) for job, host in self._hosts.items()]
        for number in list(self._logs):
            changed = self._publish_log(number) or changed
        for row in rows:
            job, text = row["row"]["name"], json.dumps(row)
            if self._sent_rows.get(job) != text:
                self._sent_rows[job] = text
                # Added after the comparison: the time alone is no change.
                self._send({**row, "now": time.time()}, b"")
                changed = True
            if row["row"]["status"] in TERMINAL:
                del self._hosts[job]
        return changed

    def _row(self, job: str, host: str) -> dict[str, Any]:
        record = self._describe(job)
        # Without the plan: it is long, and the client has it.
        row = {**asdict(record), "plan": "", "work": str(self._home.path)}
        if not record.done:
            return {"row": row, "standstill": standstill(record, self._home) or ""}
        failure_record = None
        with contextlib.suppress(OSError):
            base = self._home.job(job).host(host)
            content = read_file(base, str(INSIDE.failure_record), limit=MAX_RECORD_BYTES)
            failure_record = content.decode("utf-8", "replace")
        left, unsafe = [], ""
        try:
            left = result_folders(self._home, job, host)
        except OSError as error:
            unsafe = f"{error.filename}: {error.strerror}"
        return {"row": row, "record": failure_record, "left": left, "unsafe": unsafe}

    def _publish_log(self, number: int) -> bool:
        log, offset = self._logs[number]
        changed = False
        # The log does not exist before the host's first line.
        with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_READ_BYTES):
                self._send({"log": number}, chunk)
                offset += len(chunk)
                changed = True
        self._logs[number] = (log, offset)
        return changed
