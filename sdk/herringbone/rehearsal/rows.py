"""The result of a rehearsal: a row for each run, as a table, as JSON and as a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from herringbone.rehearsal.faults import FAULTS, UNDISTURBED
from herringbone.show.html import page_of_tables, table_of_rows
from herringbone.system.texts import NONE
from herringbone_contract.rehearsal.verdict import Outcome, Verdict

TITLES = ("BACKEND", "FAULT", "DETECTED", "LOST", "REDONE", "EQUAL TO THE UNDISTURBED RUN")
NOT_CAUSED: Literal["not caused"] = "not caused"


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault on one backend, or the two undisturbed runs.

    `equal` says whether the run gave the results of the undisturbed one, `text` the reason where it did not. `detected`
    and `lost` are seconds, `redone` steps; None for what is not known. `jobs` are the names of the runs' jobs.
    """

    backend: str
    fault: str
    equal: Literal["yes", "no", "unknown", "not caused"]
    text: str = ""
    detected: float | None = None
    lost: float | None = None
    redone: int | None = None
    jobs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells below `TITLES`."""
        redone = NONE if self.redone is None else str(self.redone)
        text = f"{self.equal}: {self.text}" if self.text else self.equal
        return self.backend, self.fault, _seconds(self.detected), _seconds(self.lost), redone, text


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rehearsal that is over.

    >>> made = Rehearsal(name="digits-1", ended=0.0, rows=(Row(backend="local", fault="rank-killed", equal="yes"),))
    >>> made.ok, made.summary
    (True, '1 of 1 equal')

    `ended` is in seconds since 1970, `report` the path of the page. `keys` tell of which code, image, distribution and
    backend it is; see `herringbone.backends.rehearsed`.
    """

    name: str
    ended: float
    rows: tuple[Row, ...]
    report: str = ""
    keys: tuple[str, ...] = ()

    @property
    def caused(self) -> list[Row]:
        """The rows of faults that were caused."""
        return [row for row in self.rows if row.equal != NOT_CAUSED and row.fault != UNDISTURBED]

    @property
    def ok(self) -> bool:
        """True if at least one fault was caused, and each run with one gave the results of the undisturbed run."""
        return bool(self.caused) and all(row.equal == "yes" for row in self.caused)

    @property
    def summary(self) -> str:
        """The result in a few words."""
        equal = sum(row.equal == "yes" for row in self.caused)
        return f"{equal} of {len(self.caused)} equal"

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The rows as texts, the titles first."""
        return [TITLES, *(row.cells for row in self.rows)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "ok": self.ok, "summary": self.summary}

    def _repr_html_(self) -> str:
        return table_of_rows(f"rehearsal {self.name}: {self.summary}", self.table)

    def page(self, settings: Sequence[tuple[str, str]]) -> str:
        """Return the report: the table, the jobs and notes of each run, and the job's settings."""
        runs = [("FAULT", "CAUSE", "JOBS", "NOTES")]
        for row in self.rows:
            cause = FAULTS[row.fault].text if row.fault in FAULTS else "no fault"
            runs.append((row.fault, cause, "\n".join(row.jobs), "\n".join(row.notes)))
        job = [("SETTING", "VALUE"), *settings]
        return page_of_tables(f"rehearsal {self.name}", [(self.summary, self.table), ("runs", runs), ("job", job)])


def judged(row: Row, verdict: Verdict) -> Row:
    """Return a row with the result of a comparison.

    >>> from herringbone_contract.rehearsal.verdict import Finding, Reason
    >>> finding = Finding(Reason.SETTINGS, 12, 0, "", "the learning rate is 0.1 instead of 0.05", "Save the scheduler.")
    >>> row = Row(backend="local", fault="rank-killed", equal="unknown")
    >>> judged(row, Verdict(Outcome.DIFFERENT, (finding,), redone=3)).text
    'step 12: the learning rate is 0.1 instead of 0.05 (learning rate or scheduler not restored). Save the scheduler.'
    """
    # Steps of optimizers of torch are recorded, and of no other library.
    text, notes = "; ".join(verdict.notes) or "no step of an optimizer of torch was recorded", verdict.notes
    if (first := verdict.first) is not None:
        tensor = f", {first.tensor}" if first.tensor and first.tensor not in first.text else ""
        text = f"step {first.step}{tensor}: {first.text} ({first.reason.value}). {first.advice}"
        notes = (*(f"{one.reason.value}: step {one.step}: {one.text}" for one in verdict.findings[1:]), *notes)
    return msgspec.structs.replace(
        row,
        equal=verdict.outcome.value,
        text="" if verdict.outcome is Outcome.EQUAL else text,
        redone=None if row.fault == UNDISTURBED else verdict.redone,
        notes=notes,
    )


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f} s"
