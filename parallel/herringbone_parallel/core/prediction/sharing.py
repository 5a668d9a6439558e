"""Finds the calls of a measured step that ranks divide under tensor parallelism.

    column   its result is divided: each rank has some of the columns
    ...      what is computed from it is divided, too: heads of an attention, an activation function
    row      its result is the sum over the ranks, and whole again

A column layer that no row layer follows gathers its result. In the backward the order is reversed. An attention of
torch's own (`nn.MultiheadAttention`) is divided inside, and its result is whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.prediction.measurement import Measurement, Phase, nearest

Array = NDArray[np.float64]
COLUMN, ROW = "column", "row"
_ATTENTION = "MultiheadAttention"


def divided_calls(measurement: Measurement) -> NDArray[np.bool_]:
    """Return, for each call, True if each rank of a tensor group computes its part of the result only."""
    splits = splits_of_modules(measurement)
    divided = np.zeros(len(measurement.calls), dtype=np.bool_)
    forwards: dict[int, list[int]] = {}
    backwards: dict[int, list[int]] = {}
    for number, call in enumerate(measurement.calls):
        if call.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            forwards.setdefault(call.microbatch, []).append(number)
        elif call.phase == Phase.BACKWARD:
            backwards.setdefault(call.microbatch, []).append(number)
    # In a backward the result of a row layer's call is the gradient of its input, which is divided.
    for calls, begins, ends in (
        *((calls, COLUMN, ROW) for calls in forwards.values()),
        *((calls, ROW, COLUMN) for calls in backwards.values()),
    ):
        inside = False
        last = max((number for number in calls if splits[measurement.calls[number].module] == ends), default=-1)
        for number in calls:
            split = splits[measurement.calls[number].module]
            if split and measurement.modules[measurement.calls[number].module].type == _ATTENTION:
                divided[number], inside = True, False
                continue
            if split == begins:
                inside = number < last
            elif split == ends:
                inside = False
            divided[number] = inside
    return divided


class Elements:
    """The elements of each parameter, as a rank of a tensor group has them.

    Elements(measurement).of_rank(2)        # half of those that are split
    """

    def __init__(self, measurement: Measurement) -> None:
        splits = splits_of_modules(measurement)
        self._split = np.array([splits[parameter.module] != "" for parameter in measurement.parameters], dtype=np.bool_)
        self._whole = np.array([parameter.elements for parameter in measurement.parameters], dtype=np.float64)

    def fractions(self, tensor: int) -> Array:
        """Return the part of each parameter that a rank has whose group is of `tensor` ranks."""
        return np.where(self._split, 1.0 / tensor, 1.0)

    def of_rank(self, tensor: int) -> Array:
        """Return the number of elements of each parameter on such a rank."""
        return np.asarray(self._whole * self.fractions(tensor))


def splits_of_modules(measurement: Measurement) -> list[str]:
    """Return how each module is divided: as it says itself, or as the nearest module around it that is divided."""
    divided = nearest(measurement, lambda module: module.split)
    return ["" if number is None else measurement.modules[number].split for number in divided]
