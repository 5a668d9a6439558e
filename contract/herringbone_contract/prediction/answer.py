"""The predictor's answer: memory, seconds and money of each layout, the best one first."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Bytes = Annotated[int, Meta(ge=0)]


class Range(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate and the bounds between which it is expected to lie."""

    low: float
    expected: float
    high: float


class Memory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes of one rank at the moment when it holds the most, by kind.

    >>> Memory(parameters=4, gradients=4, states=8).peak
    16

    `communication` is held by buckets and gathered shards, `slack` lost by the allocator.
    """

    parameters: Bytes = 0
    gradients: Bytes = 0
    states: Bytes = 0
    activations: Bytes = 0
    communication: Bytes = 0
    slack: Bytes = 0

    @property
    def peak(self) -> int:
        """All kinds together."""
        return self.parameters + self.gradients + self.states + self.activations + self.communication + self.slack


class StepTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The seconds of a step and the parts of the expected time, which add up to it.

    `compute` is the busiest rank's. `communication` is the time that no computation hides, `idle` the time in which
    that rank waits in the pipeline or for a processor that other ranks use, `data` the wait for the next batch.
    `reasons` explain the bounds of `seconds`.
    """

    seconds: Range
    compute: float
    communication: float
    idle: float
    data: float
    reasons: tuple[str, ...] = ()


class Prediction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layout on one set of hosts.

    `distribution` is the dict to paste. `mesh` has the degrees by name. `memory` has one entry for each pipeline
    partition, the largest rank of each. `refusal` says why the layout cannot run; such a layout has no `step`.
    `reasons` explain the bounds. `samples_per_second` counts all ranks. `seconds` and `dollars` are those of the whole
    job, None where its length or the price is not known.
    """

    hosts: str
    count: int
    distribution: dict[str, Any]
    mesh: dict[str, int]
    memory: tuple[Memory, ...] = ()
    device_bytes: int = 0
    step: StepTime | None = None
    samples_per_second: float | None = None
    seconds: Range | None = None
    dollars: Range | None = None
    refusal: str | None = None
    reasons: tuple[str, ...] = ()


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All predictions of a question, the best first and those that cannot run last.

    `planned` is that of the question's own `distribution`, `layouts` are those that a search compared. `notes` tell
    what was supposed or left out.
    """

    planned: Prediction
    layouts: tuple[Prediction, ...] = ()
    notes: tuple[str, ...] = ()
