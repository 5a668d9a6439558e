"""Replays torch's `fully_shard` on a measured step: units are gathered, used and freed, and their gradients reduced.

The root is a unit as well, with the parameters that no other unit has. A unit u has G(u) bytes of whole parameters, in
equal parts on the ranks, the last part of each parameter padded.

    forward of u      [1] a buffer of G(u) receives the parts; it stays until the next unit is gathered
                      [2] parameters of G(u) are copied out of it, and freed after the forward; the root's stay
    backward of u     [3] parameters of G(u) are copied out again, and the next unit's buffer is asked for
                      [4] after it, the parameters are freed. The gradients are copied into a buffer, which stays until
                          the next unit's reduction, and reduced into this rank's part
                      [5] gradients are freed once they are copied, except the last parameter's, which a variable of
                          the reduction still holds. gloo sums a copy of the buffer, so on CPUs as much is held as
                          before, and that gradient in addition

Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase, nearest
from herringbone_parallel.core.prediction.timeline import Bytes, Timeline

_ROOT = 0


class Span(NamedTuple):
    """The first and the last call of a unit in one pass."""

    unit: int
    first: int
    last: int


class Sharded(NamedTuple):
    """One rank's bytes: parameters and states in all slots; gradients and communication in each slot."""

    parameters: float
    states: float
    gradients: Bytes
    communication: Bytes


class Units:
    """The units of a measured model, and the spans of their calls.

    units = Units(timeline)
    units.sharded(4).parameters
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        measurement = timeline.measurement
        parameters = measurement.parameters
        self._of_module = units_of_modules(measurement)
        self._owners = np.array([p.module for p in parameters], dtype=np.int64)
        self._of_parameter = np.array([self._of_module[p.module] for p in parameters], dtype=np.int64)
        self._rows = np.array([p.shape[0] if p.shape else 1 for p in parameters], dtype=np.float64)
        self._bytes = np.array([p.bytes for p in parameters], dtype=np.float64)
        self._states = np.array([p.state_bytes for p in parameters], dtype=np.float64)
        self._trainable = np.array([p.trainable for p in parameters], dtype=np.bool_)
        self._passes = _passes(measurement, self._of_module)

    def sharded(self, ranks: int, fractions: Bytes | None = None, *, copied: bool = True) -> Sharded:
        """Return what one of `ranks` ranks holds that share the training state.

        `fractions` are the parts of the parameters that ranks share among them, if ranks share layers as well. A
        reduction works on a copy of its buffer if `copied`: that is gloo's.
        """
        fraction = np.ones_like(self._bytes) if fractions is None else fractions
        # Tensor parallelism may leave fewer rows, but never less than one.
        rows = np.maximum(self._rows * fraction, 1.0)
        part = np.ceil(rows / ranks) / rows * fraction
        parts = self._bytes * part
        count = len(self._of_module)
        whole = _by_unit(self._of_parameter, ranks * parts, count)
        reduced = _by_unit(self._of_parameter, ranks * parts * self._trainable, count)
        changes = np.zeros(self._timeline.slots + 2)
        grown = np.zeros(self._timeline.slots + 2)
        lasting = np.zeros(count)
        if copied:
            # Of several assignments, numpy keeps the last one: that of the unit's last parameter.
            lasting[self._of_parameter[self._trainable]] = (self._bytes * fraction)[self._trainable]
        for number, (forward, backward) in enumerate(self._passes):
            self._gather(changes, forward, backward, whole)
            self._reduce(changes, grown, backward, reduced, ranks, lasting, first=number == 0)
        gradients = self._measured_gradients(ranks, fraction) + np.cumsum(grown)[: self._timeline.slots]
        return Sharded(
            parameters=float(parts.sum()),
            states=float((self._states * part).sum()),
            gradients=gradients,
            communication=np.asarray(np.cumsum(changes)[: self._timeline.slots]),
        )

    def _gather(self, changes: Bytes, forward: list[Span], backward: list[Span], whole: Bytes) -> None:
        """Add the buffers and the gathered parameters of a pass: [1] to [4]."""
        if not forward:
            return
        begin = 2 * min(span.first for span in forward)
        middle = 2 * max(span.last for span in forward) + 2
        end = 2 * max(span.last for span in (*forward, *backward)) + 1
        blocks = [span for span in forward if span.unit != _ROOT]
        _hold(changes, begin, end, whole[_ROOT])
        starts = [begin, *(2 * span.first for span in blocks), middle]
        for unit, start, stop in zip([_ROOT, *(span.unit for span in blocks)], starts, starts[1:], strict=False):
            _hold(changes, start, stop, whole[unit])
        for span in blocks:
            _hold(changes, 2 * span.first, 2 * span.last + 1, whole[span.unit])
        blocks = [span for span in backward if span.unit != _ROOT]
        # The root's backward comes first, and asks for the unit whose forward was last.
        asked = middle
        for span in blocks:
            _hold(changes, asked, 2 * span.first, whole[span.unit])
            asked = 2 * span.first
            _hold(changes, 2 * span.first, 2 * span.last + 1, whole[span.unit])

    def _reduce(
        self,
        changes: Bytes,
        grown: Bytes,
        backward: list[Span],
        reduced: Bytes,
        ranks: int,
        lasting: Bytes,
        *,
        first: bool,
    ) -> None:
        """Add the buffers of reductions, and the parts of the gradients: [4]. `lasting` are held longer: [5]."""
        if not backward:
            return
        end = 2 * max(span.last for span in backward) + 1
        blocks = [(span.unit, 2 * span.last + 1) for span in backward if span.unit != _ROOT]
        # The root has no span of its own in a backward: it is reduced when all others are.
        reductions = sorted([*blocks, (_ROOT, end)], key=lambda block: (block[1], reduced[block[0]]))
        stops = [slot for _, slot in reductions[1:]] + [end + 1]
        for (unit, slot), stop in zip(reductions, stops, strict=True):
            # Units that end together are reduced one after the other: the largest one counts.
            if slot < stop:
                _hold(changes, slot, stop, reduced[unit])
                _hold(changes, slot, slot + 1, lasting[unit])
            if first:
                grown[min(slot, len(grown) - 1)] += reduced[unit] / ranks
            else:
                # The gradients of a later pass exist until they are reduced and added.
                grown[slot - 1] += reduced[unit]
                grown[slot + 1] -= reduced[unit]

    def _measured_gradients(self, ranks: int, fractions: Bytes) -> Bytes:
        """Return the parts of the last step's gradients, and whole new ones until their unit is reduced."""
        timeline = self._timeline
        gradients = timeline.kinds == Kind.GRADIENT
        of_module = np.ones(len(self._of_module))
        of_module[self._owners] = fractions
        sizes = timeline.bytes * of_module[timeline.modules]
        before = timeline.curve(gradients & (timeline.calls_born < 0), sizes) / ranks
        new = np.flatnonzero(gradients & (timeline.calls_born >= 0))
        changes = np.zeros(timeline.slots + 2)
        ends = self._reduced_at()
        for tensor in new.tolist():
            stop = ends.get(int(self._of_module[timeline.modules[tensor]]), timeline.slots)
            _hold(changes, int(timeline.start[tensor]), stop + 1, sizes[tensor])
        return np.asarray(before + np.cumsum(changes)[: timeline.slots])

    def _reduced_at(self) -> dict[int, int]:
        """Return the slot in which each unit's gradients are reduced in the first pass."""
        if not self._passes or not self._passes[0][1]:
            return {}
        backward = self._passes[0][1]
        ends = {span.unit: 2 * span.last + 1 for span in backward}
        return {**ends, _ROOT: max(ends.values())}


def _by_unit(units: NDArray[np.int64], sizes: Bytes, count: int) -> Bytes:
    return np.asarray(np.bincount(units, sizes, count), dtype=np.float64)


def _hold(changes: Bytes, start: int, stop: int, size: float) -> None:
    """Add bytes from slot `start` up to `stop`."""
    if stop > start:
        changes[start] += size
        changes[min(stop, len(changes) - 1)] -= size


def units_of_modules(measurement: Measurement) -> NDArray[np.int64]:
    """Return the unit of each module: the nearest module around it that is a unit, else the root."""
    return np.array([unit or _ROOT for unit in nearest(measurement, lambda module: module.unit)], dtype=np.int64)


def _passes(measurement: Measurement, units: NDArray[np.int64]) -> list[tuple[list[Span], list[Span]]]:
    """Return the spans of all units in each pass: those of its forward and those of its backward, in their order."""
    passes: dict[int, tuple[dict[int, Span], dict[int, Span]]] = {}
    for number, call in enumerate(measurement.calls):
        if call.phase not in (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD):
            continue
        forward, backward = passes.setdefault(call.microbatch, ({}, {}))
        # What is computed again belongs to the backward that asked for it.
        spans = forward if call.phase == Phase.FORWARD else backward
        unit = int(units[call.module])
        first = spans[unit].first if unit in spans else number
        spans[unit] = Span(unit, first, number)
    for _, backward in passes.values():
        end = max((span.last for span in backward.values()), default=0)
        late = [unit for unit in backward if measurement.modules[unit].late]
        backward.update({unit: backward[unit]._replace(last=end) for unit in late})
    return [
        (sorted(forward.values(), key=lambda span: span.first), sorted(backward.values(), key=lambda span: span.first))
        for _, (forward, backward) in sorted(passes.items())
    ]
