"""The places of this user's waiting jobs, for `fit`, `ls` and `describe`, from the files of the line alone."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from herringbone.records.index import PENDING, RESTARTING, JobIndex, JobRecord, stored_facts
from herringbone.records.standstill import standstill
from herringbone.records.state_lines import last_message
from herringbone.slots.folder import SlotsFolder, View, slots_path
from herringbone.slots.line import Waiting, line_text, places
from herringbone.slots.ticket import Ticket
from herringbone.system.processes import is_stopped
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from collections.abc import Collection

    from herringbone.records.home import Home

# The member of a job's facts with its place in line.
QUEUE = "Queue"
# Backends whose waiting jobs are in a line of this machine.
OF_THIS_MACHINE = ("local_process", "local")
# A look at a long line takes a while, and may take this part of the time.
_LEAST_SECONDS, _SHARE = 0.5, 20
# The jobs of a line that may keep the others waiting; a line may have a thousand.
_FIRST = 20


def waits_here(record: JobRecord) -> bool:
    """Report whether a job waits in a line, and not for a cluster or a service."""
    return record.secondary_status == PENDING and record.backend in OF_THIS_MACHINE and not record.done


def waits_in_line(record: JobRecord) -> bool:
    """Report whether a job waits in any line whose places this module knows."""
    return waits_here(record) or waits_for_machines(record)


def waits_for_machines(record: JobRecord) -> bool:
    """Report whether a job waits in the lines of an inventory's machines; its waiter writes the place into the row."""
    return record.secondary_status == PENDING and record.backend == "ssh" and not record.done


def stored_place(home: Home, record: JobRecord) -> dict[str, Any]:
    """Return the place that a waiter wrote into the row, as a description shows it; empty before its first look."""
    # Summaries of rows come without facts.
    place = stored_facts(JobIndex(home.index).get(record.name) if record.facts is None else record).get(QUEUE)
    return place if isinstance(place, dict) else {}


def waiting_jobs(home: Home) -> dict[str, tuple[Ticket, Waiting]]:
    """Return ticket and place of each job of this home that waits in this machine's line, by the job's name."""
    view = _view()
    line, stopped = {}, None
    for ticket, waiting in places(view.tickets, view.turns):
        if _is_of(ticket, home):
            line[ticket.job] = (ticket, replace(waiting, stopped=stopped))
        if stopped is None and waiting.place <= _FIRST and ticket.waiter and is_stopped(ticket.waiter):
            stopped = ticket
    return line


class LineLook:
    """One look at this machine's line, taken when it is first needed; a line may have a thousand files.

    >>> len(LineLook(home).jobs)                                                # doctest: +SKIP
    2
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    @cached_property
    def jobs(self) -> dict[str, tuple[Ticket, Waiting]]:
        """Ticket and place of each job of this home whose waiter lives, by the job's name."""
        return waiting_jobs(self._home)


def _view() -> View:
    try:
        path = slots_path(os.environ)
        # A look must leave nothing behind.
        if path is not None and os.path.isdir(path):  # noqa: PTH112
            with closing(SlotsFolder(path)) as folder:
                return folder.read()
    except (HerringboneError, OSError):
        pass
    return View((), {})


def _is_of(ticket: Ticket, home: Home) -> bool:
    return ticket.waits and ticket.uid == os.getuid() and ticket.home == str(home.path)


def place_texts(home: Home, records: Collection[JobRecord], line: LineLook | None = None) -> dict[str, str]:
    """Return where each job is that waits, or why it stands still, in words, by name; `line` is a look taken before.

    >>> place_texts(Home(Path("/home/ann/.herringbone")), records)      # doctest: +SKIP
    {'digits-2': '1st in line, waits for digits-1 (bob)'}
    """
    texts: dict[str, str] = {}
    if any(map(waits_here, records)):
        jobs = (line or LineLook(home)).jobs
        waiting_here = (record.name for record in records if record.name in jobs)
        texts = {job: line_text(jobs[job][1], jobs[job][0].note) for job in waiting_here}
    for record in filter(waits_for_machines, records):
        texts[record.name] = stored_place(home, record).get("Text", "")
    for record in records:
        if record.backend == "slurm" and record.secondary_status in (PENDING, RESTARTING) and not record.done:
            # Summaries of rows come without descriptions.
            texts[record.name] = last_message(JobIndex(home.index).get(record.name))
        if text := standstill(record, home):
            texts[record.name] = text.removeprefix(f"job {record.name} ")
    return texts


def queue_members(home: Home, record: JobRecord) -> dict[str, Any] | None:
    """Return the place of a job for its description; None for a job that does not wait here."""
    if not waits_here(record) or (found := waiting_jobs(home).get(record.name)) is None:
        return None
    ticket, waiting = found
    members: dict[str, Any] = {"Place": waiting.place, "Text": line_text(waiting, ticket.note)}
    holders = [
        {"Job": holder.job, "User": holder.user, "LatestEnd": _iso((holder.granted_at or 0.0) + holder.max_run)}
        for holder in waiting.holders
    ]
    return members | ({"WaitsFor": holders} if holders else {})


def _iso(seconds: float) -> str | None:
    # Another user may have written any number.
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None


class PlaceLines:
    """The changes of one job's place while a caller waits for the job.

    >>> PlaceLines(home).of(record, now=time.monotonic())               # doctest: +SKIP
    ['digits-2: 1st in line, waits for digits-1 (bob)']
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._text = ""
        self._next_look = 0.0

    def of(self, record: JobRecord, *, now: float) -> list[str]:
        """Return a line if the place has changed since the last look."""
        if not waits_in_line(record) or now < self._next_look:
            return []
        begin = time.monotonic()
        text = place_texts(self._home, [record]).get(record.name, "")
        self._next_look = now + max(_LEAST_SECONDS, _SHARE * (time.monotonic() - begin))
        if text in ("", self._text):
            return []
        self._text = text
        return [f"{record.name}: {text}"]
