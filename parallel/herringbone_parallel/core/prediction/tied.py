"""Gradients of a weight that modules share, where a pipeline's rank comes back to it.

In the measured step autograd waits for the gradient of each use, adds them, and then adds the sum to `grad`. A rank of
a pipeline runs one backward for each of its visits, and adds to `grad` at the end of each. So no part of a gradient
outlives its visit, and no sum of parts of several visits is made.

    measured    head's part |-----------------------------------|
                embedding's part                             |--|
                sum                                             |----
    this rank   head's part |----|
                grad             |-----------------------------------
                embedding's part                             |--|
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase
from herringbone_parallel.core.prediction.stages import Partition

Slots = NDArray[np.int64]


class TiedGradients:
    """The gradients of shared weights of one measurement.

    start, end = TiedGradients(measurement).lives(start, end, partition)

    Slots are those of `timeline`.
    """

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._passes = list(_passes(measurement))
        # The calls of each microbatch's backward.
        self._backwards = list(_backwards(measurement)) if self._passes else []

    def lives(self, start: Slots, end: Slots, partition: Partition) -> tuple[Slots, Slots]:
        """Return the first slot of each tensor and the one after its last, on the ranks of a pipeline.

        `start` and `end` are those of the measured step. They are returned as they are where no life changes.
        """
        if partition.count == 1 or not self._passes:
            return start, end
        start, end = start.copy(), end.copy()
        borders, measured = self._borders(partition), self._measurement.tensors
        for tensors in self._passes:
            first = min(int(borders[measured[tensor].born]) for tensor in tensors)
            for tensor in tensors:
                born = measured[tensor].born
                border = int(borders[born])
                # Parts that are added end with the call that adds them.
                parts = [part for part in tensors if part < tensor and measured[part].freed == born + 1]
                of_several = self._is_sum(tensor) and any(borders[measured[part].born] != border for part in parts)
                if measured[tensor].kind == Kind.GRADIENT:
                    start[tensor] = min(start[tensor], first) if of_several else start[tensor]
                else:
                    # A sum of several visits is not made.
                    end[tensor] = start[tensor] if of_several else min(end[tensor], border)
        return start, end

    def _borders(self, partition: Partition) -> Slots:
        """Return, for each call of a backward, the slot after the last call of its visit."""
        count = len(self._measurement.calls)
        borders = np.full(count, 2 * count + 2, dtype=np.int64)
        for calls in self._backwards:
            lasts = np.append(np.flatnonzero(np.diff(partition.calls[calls])), len(calls) - 1)
            last_of_visit = calls[lasts[np.searchsorted(lasts, np.arange(len(calls)))]]
            borders[calls] = 2 * last_of_visit + 1
        return borders

    def _is_sum(self, tensor: int) -> bool:
        call = self._measurement.calls[self._measurement.tensors[tensor].born]
        return self._measurement.operations[call.operation].name.startswith("aten.add.")


def _backwards(measurement: Measurement) -> Iterator[Slots]:
    calls = measurement.calls
    microbatches = np.array([call.microbatch if call.phase == Phase.BACKWARD else -1 for call in calls], dtype=np.int64)
    for microbatch in np.unique(microbatches[microbatches >= 0]):
        yield np.flatnonzero(microbatches == microbatch)


def _passes(measurement: Measurement) -> Iterator[list[int]]:
    """Yield the tensors of the size of a shared weight that its modules make in the backward of one microbatch."""
    weights = [(p.bytes, {p.module, *p.shared_by}) for p in measurement.parameters if p.shared_by]
    found: dict[tuple[int, int], list[int]] = {}
    for number, tensor in enumerate(measurement.tensors):
        if tensor.born < 0 or tensor.kind not in (Kind.GRADIENT, Kind.TEMPORARY):
            continue
        if measurement.calls[tensor.born].phase != Phase.BACKWARD:
            continue
        for weight, (size, modules) in enumerate(weights):
            if tensor.bytes == size and tensor.module in modules:
                found.setdefault((weight, tensor.microbatch), []).append(number)
    for tensors in found.values():
        yield sorted(tensors, key=lambda number: measurement.tensors[number].born)
