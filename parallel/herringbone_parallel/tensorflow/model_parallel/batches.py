"""Checks that the ranks of a pipeline get the same batches: one rank uses the inputs, another the labels."""

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

# The number of values of a tensor that a digest reads, spread over the tensor.
_SAMPLED_VALUES = 1024

_ADVICE = (
    "Every rank of a pipeline reads the same data in the same order: call keras.utils.set_random_seed(7) first, or give"
    " what shuffles a seed, dataset.shuffle(1000, seed=7). Data are shared out among replicas only,"
    " dataset.shard(smp.dp_size(), smp.dp_rank())"
)


class SameBatches:
    """Compares the first batch of each loop between the ranks of a pipeline.

    same.compare_next()
    same.compare(batch)
    """

    def __init__(self) -> None:
        self._due = False
        self._agreed_seed: int | None = None

    def agree_on_seed(self) -> None:
        """Set one seed on all ranks of the pipeline if the script has set none: Keras shuffles with it."""
        own_seed = context.global_seed()
        # A seed of an earlier `fit` is not the script's: each `fit` shuffles in a new order.
        own_seed = None if own_seed == self._agreed_seed else own_seed
        proposals = of_pipeline((own_seed, secrets.randbits(31)))
        seeds = [seed for seed, _ in proposals]
        if any(seed != seeds[0] for seed in seeds):
            raise ParallelError(f"fit: the ranks of this pipeline shuffle with other seeds, {seeds}. {_ADVICE}")
        if own_seed is None:
            self._agreed_seed = proposals[0][1]
            tf.random.set_seed(self._agreed_seed)

    def compare_next(self) -> None:
        """Mark the next batch as due for a comparison."""
        self._due = True

    def compare(self, batch: Any) -> None:
        """Raise `ParallelError` on every rank if this batch is due and differs between the ranks."""
        if not self._due:
            return
        self._due = False
        check_same(batch)


def check_same(batch: Any) -> None:
    """Raise `ParallelError` on every rank of the pipeline if the ranks have called this with different batches."""
    digests = of_pipeline(digest(batch))
    odd = next((index for index, other in enumerate(digests) if other != digests[0]), None)
    if odd is not None:
        ranks = state.get().pipeline
        raise ParallelError(f"ranks {ranks[0]} and {ranks[odd]} of a pipeline were given other batches. {_ADVICE}")


def digest(batch: Any) -> int:
    """Return a checksum of a batch, from the shapes of its tensors and a sample of their values.

    digest((images, labels))
    """
    checksum = 0
    for leaf in leaves_of(batch):
        known = isinstance(leaf, tf.Tensor | np.ndarray | bytes)
        values = np.asarray(leaf if known else repr(type(leaf)))
        sample = values.reshape(-1)[:: max(1, values.size // _SAMPLED_VALUES)]
        # The bytes of an array of Python objects are addresses, which differ between processes.
        content = sample.tolist() if sample.dtype.hasobject else sample.tobytes()
        checksum = zlib.crc32(repr((values.shape, str(values.dtype), content)).encode(), checksum)
    return checksum


def sample_of(tensors: Sequence[Any]) -> tf.Tensor:
    """Return some values of each tensor as one string, for a batch inside a graph, where `digest` sees no values."""
    samples = []
    for tensor in tensors:
        values = tf.reshape(tensor, [-1])
        # The extent is unknown where the graph leaves the batch's size open.
        values = values[:: max(1, (values.shape[0] or 0) // _SAMPLED_VALUES)][:_SAMPLED_VALUES]
        samples.append(tf.io.serialize_tensor(values))
    return tf.strings.join(samples)


def of_pipeline(value: Any) -> Sequence[Any]:
    """Return the value of each rank of this pipeline; every one of them calls it."""
    return [value] if len(state.get().pipeline) == 1 else allgather(value, PP_GROUP)
