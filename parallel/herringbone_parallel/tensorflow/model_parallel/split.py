"""Cuts tensor arguments of a step function into microbatches, and refuses tensors that cannot be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.microbatch import microbatch_size


def is_tensor(leaf: Any) -> bool:
    """Say whether an argument is a tensor; any other argument is a value that the function is traced with."""
    return isinstance(leaf, tf.Tensor | np.ndarray)


def pieces(name: str, leaf: Any, microbatches: int, axis: int) -> Sequence[Any] | None:
    """Return a tensor's part for each microbatch; None for a leaf that is no tensor or has no axis."""
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        raise ParallelError(
            f"argument {name!r} of the step is a {type(leaf).__name__}, which cannot be cut into microbatches: pass it"
            " dense, or name it in non_split_inputs and let the step take what it needs"
        )
    if not is_tensor(leaf) or not len(leaf.shape):
        return None
    # Inside a `tf.function` the extent may be unknown; `tf.split` then checks it when the graph runs.
    if leaf.shape[axis] is not None:
        microbatch_size(leaf.shape[axis], microbatches, what=f"argument {name!r}", axis=axis)
    return tf.split(leaf, microbatches, axis)  # type: ignore[no-any-return]
