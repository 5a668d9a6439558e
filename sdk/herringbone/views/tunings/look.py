"""One search at one moment, as views show it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herringbone.records.index import TERMINAL
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.store import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningLook:
    """One search at one moment. Times are in seconds since 1970.

    `reason` says why the search failed, ended early, or does not go on.
    """

    definition: TuningDefinition
    trials: Sequence[TrialRecord]
    status: str
    backend: str
    created: float
    ended: float | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def done(self) -> bool:
        return self.status in TERMINAL
