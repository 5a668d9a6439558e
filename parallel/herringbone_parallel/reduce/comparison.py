"""Compares the weights and gradients of all ranks by digests, so that equal arrays need not be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree, all_gather
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine

# Ranks apply equal gradients, so only the order of atomic additions on a GPU parts them, by far less than this.
_DRIFT = 1e-3
# A sample is small: a learning rate that differs parts all weights.
_SAMPLED, _SAMPLED_ELEMENTS = 8, 4096


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


def sampled(sizes: Sequence[int]) -> list[int]:
    """Return the positions of the weights to compare again and again, given their numbers of elements.

    >>> sampled([9_000, 10, 300]), sampled([9_000, 7_000])
    ([1, 2], [1])
    """
    smallest = sorted(range(len(sizes)), key=lambda position: sizes[position])[:_SAMPLED]
    # Of a large weight a part is compared, so only one of them.
    return [position for position in smallest if sizes[position] <= _SAMPLED_ELEMENTS] or smallest[:1]


class Comparison:
    """Compares the ranks' gradients and weights before they sum the same gradients in every step.

    `gradients` describes the gradients, `weights` returns the weights, `remedy` tells the user how to make them equal.
    All weights are compared before the second sum, because scripts may broadcast them after their first step, when the
    optimizer's variables exist, too. Later on `sample`, a few small weights, shows whether the ranks drift apart.
    """

    def __init__(
        self,
        gradients: str,
        weights: Callable[[], Sequence[Array]],
        remedy: str,
        sample: Callable[[], Sequence[Array]] = list,
    ) -> None:
        self._gradients, self._weights, self._remedy, self._sample = gradients, weights, remedy, sample
        self._sums = 0

    def before_sum(self, engine: Engine) -> None:
        """Raise `ParallelError` on all ranks if their gradients or their weights differ."""
        self._sums += 1
        if self._sums == 1:
            agree(engine, "the gradients", self._gradients)
        if self._sums == 2 and not are_equal(engine, self._weights()):
            raise ParallelError(f"the ranks train from different weights: {self._remedy}")
        # Early in short jobs, and seldom in long ones: two messages in 64 steps.
        if self._sums in (8, 16, 32) or self._sums % 64 == 0:
            self._refuse_drift(engine)

    def _refuse_drift(self, engine: Engine) -> None:
        """Raise `ParallelError` on all ranks if the sample differs by more than rounding between any two of them."""
        values = [np.asarray(array).reshape(-1)[:_SAMPLED_ELEMENTS].astype(np.float64) for array in self._sample()]
        joined = np.concatenate([np.zeros(0), *values])
        first, *others = [np.frombuffer(data) for data in all_gather(engine, joined.tobytes())]
        limit = _DRIFT * float(np.abs(first).max(initial=0.0))
        for rank, other in enumerate(others, 1):
            if float(np.abs(other - first).max(initial=0.0)) > limit:
                raise ParallelError(
                    f"the weights of ranks 0 and {rank} have drifted apart by step {self._sums}, though both apply the"
                    " same gradients: their learning rates or other settings differ, as when a callback acts on the"
                    " metrics of one rank. Average what callbacks act on over the ranks, with hvd.allreduce,"
                    " sdp.oob_allreduce or Horovod's MetricAverageCallback"
                )
