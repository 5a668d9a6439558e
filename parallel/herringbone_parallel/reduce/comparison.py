"""Compares the weights and gradients of all ranks by digests, so that equal arrays need not be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree, all_gather
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine


def digest(arrays: Sequence[Array]) -> bytes:
    """Return a digest of 32 bytes of all bits of the arrays.

    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]) != digest([np.ones(2)])
    True
    """
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.digest()


def are_equal(engine: Engine, arrays: Sequence[Array]) -> bool:
    """Return True if all ranks have the same values; all ranks call it."""
    return len(set(all_gather(engine, digest(arrays)))) == 1


class Comparison:
    """Compares the ranks' gradients and weights, once each, before they sum the same gradients in every step.

    `gradients` describes the gradients, `weights` returns the weights, `remedy` tells the user how to make them equal.
    Weights are compared before the second sum, because scripts may broadcast them after their first step, when the
    optimizer's variables exist, too.
    """

    def __init__(self, gradients: str, weights: Callable[[], Sequence[Array]], remedy: str) -> None:
        self._gradients, self._weights, self._remedy = gradients, weights, remedy
        self._sums = 0

    def before_sum(self, engine: Engine) -> None:
        """Raise `ParallelError` on all ranks if their gradients or their weights differ."""
        self._sums += 1
        if self._sums == 1:
            agree(engine, "the gradients", self._gradients)
        if self._sums == 2 and not are_equal(engine, self._weights()):
            raise ParallelError(f"the ranks train from different weights: {self._remedy}")
