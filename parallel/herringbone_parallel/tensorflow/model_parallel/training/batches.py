"""Sees to it that the ranks of a pipeline are given the same batches: one uses the inputs, another the labels."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import PP_GROUP
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.communication import allgather

# Of a tensor so many values are looked at, spread over it.
_LOOKED_AT = 1024

_ADVICE = (
    "Every rank of a pipeline reads the same data in the same order: call keras.utils.set_random_seed(7) first, or give"
    " what shuffles a seed, dataset.shuffle(1000, seed=7). Data are shared out among replicas only,"
    " dataset.shard(smp.dp_size(), smp.dp_rank())"
)


class SameBatches:
    """Compares the batches of the ranks of a pipeline, the first one of each loop.

    same.compare_next()
    same.compare(batch)
    """

    def __init__(self) -> None:
        self._due = False
        self._agreed: int | None = None

    def agree_on_seed(self) -> None:
        """Set TensorFlow's seed to one that the ranks share, where the script has set none: Keras shuffles with it."""
        own = context.global_seed()
        own = None if own == self._agreed else own
        found = _of_pipeline((own, secrets.randbits(31)))
        seeds = [seed for seed, _ in found]
        if any(seed != seeds[0] for seed in seeds):
            raise ParallelError(f"fit: the ranks of this pipeline shuffle with other seeds, {seeds}. {_ADVICE}")
        if own is None:
            self._agreed = found[0][1]
            tf.random.set_seed(self._agreed)

    def compare_next(self) -> None:
        """Compare the batch that comes next."""
        self._due = True

    def compare(self, batch: Any) -> None:
        """Raise `ParallelError` on every rank where this batch, if it is due, is not the same on all of them."""
        if not self._due:
            return
        self._due = False
        found = _of_pipeline(digest(batch))
        odd = next((index for index, other in enumerate(found) if other != found[0]), None)
        if odd is not None:
            ranks = state.get().pipeline
            raise ParallelError(f"ranks {ranks[0]} and {ranks[odd]} of a pipeline were given other batches. {_ADVICE}")


def digest(batch: Any) -> int:
    """Return a number that tells batches apart, by the shapes of their tensors and some of their values.

    digest((images, labels))
    """
    found = 0
    for leaf in leaves_of(batch):
        values = np.asarray(leaf) if isinstance(leaf, tf.Tensor | np.ndarray) else np.asarray(repr(type(leaf)))
        few = values.reshape(-1)[:: max(1, values.size // _LOOKED_AT)]
        said = few.tolist() if few.dtype.hasobject else few.tobytes()
        found = zlib.crc32(repr((values.shape, str(values.dtype), said)).encode(), found)
    return found


def _of_pipeline(value: Any) -> Sequence[Any]:
    here = state.get()
    return [value] if len(here.pipeline) == 1 else allgather(value, PP_GROUP)
