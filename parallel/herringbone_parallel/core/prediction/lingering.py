"""Tensors of an optimizer that outlive the calls of their own parameter, where a rank has a part of the parameters.

A Python variable of the optimizer's loop holds the last parameter's tensor until the loop assigns the next one. In the
measured step that happens in calls of the next parameter. A pipeline's rank that does not have this parameter comes to
the assignment in the calls of its own next parameter, whose new tensors are there by then.

    measured    [own: sqrt div] [other: sqrt div] [own: sqrt div]
                         |______________^ freed in the second call of the next parameter
    this rank   [own: sqrt div]                   [own: sqrt div]
                         |_______________________________^
"""

from __future__ import annotations

import numpy as np

from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase
from herringbone_parallel.core.prediction.stages import SEVERAL, Partition
from herringbone_parallel.core.prediction.timeline import Bytes


class Lingering:
    """The optimizer's temporaries of one measurement.

        Lingering(measurement).of(partition, 0)[-1]

    Each partition's curve is computed once.
    """

    def __init__(self, measurement: Measurement) -> None:
        self._modules = np.array([call.module for call in measurement.calls], dtype=np.int64)
        phases = np.array([call.phase for call in measurement.calls], dtype=np.int64)
        self._updates = phases >= Phase.BETWEEN
        rows = [
            # The last call during which the tensor lives comes second.
            (tensor.born, tensor.freed - 1, tensor.module, tensor.bytes)
            for tensor in measurement.tensors
            if tensor.kind == Kind.TEMPORARY and tensor.freed > 0 and tensor.born >= 0 and self._updates[tensor.born]
        ]
        self._born, self._last, self._owners, self._bytes = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        self._known: dict[tuple[int, int, int], Bytes] = {}

    def of(self, partition: Partition, index: int) -> Bytes:
        """Return the bytes in each slot of the update that one partition's rank holds longer than the measured step.

        The slots are those of `timeline`: 2 t is during call t, 2 t + 1 after it.
        """
        key = (partition.count, partition.assignment, index)
        if key not in self._known:
            self._known[key] = self._make(partition, index)
        return self._known[key]

    def _make(self, partition: Partition, index: int) -> Bytes:
        slots = 2 * len(self._modules) + 2
        homes = partition.modules[self._modules]
        own = np.flatnonzero(self._updates & (homes == index))
        foreign = self._updates & (homes != index) & (homes != SEVERAL)
        chosen = np.flatnonzero(foreign[self._last] & (partition.modules[self._owners] == index))
        # The next own call after the one that frees the tensor; without one, the loop has ended on this rank.
        position = np.searchsorted(own, self._last[chosen])
        chosen, position = chosen[position < len(own)], position[position < len(own)]
        last = self._last[chosen]
        # The foreign calls before the one that frees the tensor: as many as there are own ones now.
        before = np.where(position > 0, own[position - 1], self._born[chosen]) if len(own) else last
        new_last = np.minimum(own[position] + (last - before - 1), len(self._modules) - 1)
        births = np.bincount(2 * last + 1, self._bytes[chosen], slots + 1)
        ends = np.bincount(2 * new_last + 1, self._bytes[chosen], slots + 1)
        return np.asarray(np.cumsum(births - ends)[:slots], dtype=np.float64)
