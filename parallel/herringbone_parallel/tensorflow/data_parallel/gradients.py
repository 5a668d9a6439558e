"""What happens to the gradients of a tape or an optimizer between their computation and their use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.fused import Array, cut
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import NoneCompressor
from herringbone_parallel.tensorflow.data_parallel.reduction import (
    Reduction,
    described,
    order_of_readiness,
    start_in_order,
)
from herringbone_parallel.tensorflow.data_parallel.weights import compare, is_readable


class ReduceOp(Enum):
    """What becomes of the tensors of all ranks; gradients are averaged or summed."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


# AWS's: a bucket is a multiple of 128 bytes.
_BUCKET_UNIT = 128


@dataclass(frozen=True)
class Travel:
    """How gradients travel: what the arguments of `DistributedGradientTape` and `DistributedOptimizer` say."""

    compression: Any = NoneCompressor
    op: ReduceOp = ReduceOp.AVERAGE
    sparse_as_dense: bool = True
    bucket_cap_mb: float | None = None

    def __post_init__(self) -> None:
        if self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise ParallelError(
                f"op {self.op}: gradients are averaged or summed; oob_allreduce has minimum and maximum"
            )
        if self.most_bytes is not None and (self.most_bytes <= 0 or self.most_bytes % _BUCKET_UNIT):
            raise ParallelError(
                f"bucket_cap_mb {self.bucket_cap_mb}: it is above 0, and its bytes are a multiple of {_BUCKET_UNIT}"
            )

    @property
    def most_bytes(self) -> int | None:
        return None if self.bucket_cap_mb is None else int(self.bucket_cap_mb * (1 << 20))


def refuse_devices(**devices: str) -> None:
    """Raise `ParallelError` for devices that gradients should be moved to: they travel from where they are."""
    unknown = set(devices) - {"device_dense", "device_sparse"}
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    asked = [f"{name}={value!r}" for name, value in devices.items() if value]
    if asked:
        raise ParallelError(f"{', '.join(asked)}: gradients travel from the device they are on; leave it out")


def reduce_gradients(gradients: Sequence[Any], variables: Sequence[Any], travel: Travel) -> list[Any]:
    """Return the gradients' averages (or sums) over all ranks; a gradient that is None stays None.

    Raises `ParallelError` when ranks have different lists, at the first call on all of them.
    """
    if state.size() == 1:
        return [densified(gradient) if travel.sparse_as_dense else gradient for gradient in gradients]
    results = list(gradients)
    dense = []
    for number, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices) and not travel.sparse_as_dense:
            results[number] = _gathered(gradient, travel.op)
        elif gradient is not None:
            dense.append(number)
    order = order_of_readiness([densest(gradients[number]) for number in dense])
    packed = [travel.compression.compress(densified(gradients[number])) for number in dense]
    tensors = [tensor for tensor, _ in packed]
    reduction = _reduction([variables[number] for number in dense], tensors, order, travel)
    for number, total, (_, context) in zip(dense, reduction(tensors), packed, strict=True):
        results[number] = travel.compression.decompress(total, context)
    return results


def densified(gradient: Any) -> Any:
    """Return a sparse gradient as a tensor, and others as they are."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def densest(gradient: Any) -> tf.Tensor:
    """Return the tensor that a gradient's computation ends with."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def inner_variable(variable: Any) -> Any:
    """Return TensorFlow's variable, from within one of Keras; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def name_of(variable: Any) -> str:
    """Return a variable's name without the numbers that Keras adds to a name that a process has used before."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "tensor"
    return re.sub(r"_\d+(?=[/:]|$)", "", name.removesuffix(":0"))


def _reduction(variables: Sequence[Any], tensors: Sequence[tf.Tensor], order: list[int], travel: Travel) -> Reduction:
    """Make the reduction of these gradients; outside of a graph, the one of the last step serves again."""
    specs, dtypes = described([name_of(variable) for variable in variables], tensors)
    current = state.get()
    # A tensor, of which a tape can give the gradient too, is another one in every step.
    key = (tuple(specs), travel, tuple(id(variable) if is_readable(variable) else None for variable in variables))
    if tf.executing_eagerly() and key in current.reductions:
        return current.reductions[key]  # type: ignore[no-any-return]
    buckets = cut(specs, dtypes, order, cost=current.cost, most_bytes=travel.most_bytes)
    if key not in current.comparisons:
        lines = [f"{spec.name}: {spec.dtype} {list(spec.shape)}" for spec in specs]
        lines.append(f"in buckets: {[bucket.members for bucket in buckets]}")
        current.comparisons[key] = compare("\n".join(lines), variables)
    starts = current.observe(buckets)
    reduction = Reduction(current.engine, buckets, current.comparisons[key], op=travel.op.value, starts=starts)
    if tf.executing_eagerly():
        current.reductions[key] = reduction
    return reduction


def _gathered(gradient: tf.IndexedSlices, op: ReduceOp) -> tf.IndexedSlices:
    """Return the slices of all ranks one behind the other: where an index is there twice, whoever applies them adds."""
    engine = state.get().engine

    def gather(values: Array, indices: Array) -> tuple[Array, Array]:
        all_values = [
            np.frombuffer(data, values.dtype).reshape(-1, *values.shape[1:])
            for data in all_gather(engine, values.tobytes())
        ]
        all_indices = [np.frombuffer(data, indices.dtype) for data in all_gather(engine, indices.tobytes())]
        return np.concatenate(all_values), np.concatenate(all_indices)

    types = [gradient.values.dtype, gradient.indices.dtype]
    if tf.executing_eagerly():
        arrays = gather(gradient.values.numpy(), gradient.indices.numpy())
        values, indices = (tf.convert_to_tensor(array) for array in arrays)
    else:
        values, indices = start_in_order(gather, [gradient.values, gradient.indices], types)
        values.set_shape([None, *gradient.values.shape[1:]])
        indices.set_shape([None])
    if op is ReduceOp.AVERAGE:
        values = values / tf.cast(engine.size, values.dtype)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
