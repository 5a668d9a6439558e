"""Sums the gradients of a tape or an optimizer over all ranks, before the script or the optimizer uses them."""

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
from herringbone_parallel.reduce.comparison import Comparison, sampled
from herringbone_parallel.reduce.fused import Array, cut
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import NoneCompressor
from herringbone_parallel.tensorflow.data_parallel.reduction import (
    Reduction,
    described,
    order_of_readiness,
    start_in_order,
)

# AWS's library cuts buckets in multiples of so many bytes.
_BUCKET_UNIT = 128
_REMEDY = (
    "call broadcast_variables(model.variables, root_rank=0) before or right after the first step (with Keras, a"
    " BroadcastGlobalVariablesCallback), or set the same seed on all ranks before the model is made"
)


class ReduceOp(Enum):
    """Operation on the tensors of all ranks; gradients are averaged or summed."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class ReduceOptions:
    """Settings for a sum of gradients: the arguments of `DistributedGradientTape` and `DistributedOptimizer`."""

    compression: Any = NoneCompressor
    op: ReduceOp = ReduceOp.AVERAGE
    sparse_as_dense: bool = False
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
    """Raise `ParallelError` for devices that gradients should move to: gradients travel from their own device."""
    unknown = set(devices) - {"device_dense", "device_sparse"}
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    requested = [f"{name}={value!r}" for name, value in devices.items() if value]
    if requested:
        raise ParallelError(f"{', '.join(requested)}: gradients travel from the device they are on; leave it out")


def reduce_gradients(gradients: Sequence[Any], variables: Sequence[Any], options: ReduceOptions) -> list[Any]:
    """Return the averages (or sums) of the gradients over all ranks; a gradient that is None stays None.

    Raises `ParallelError` on all ranks, at the first call, when the ranks have different lists.
    """
    if state.size() == 1:
        return [densified(gradient) if options.sparse_as_dense else gradient for gradient in gradients]
    results = list(gradients)
    dense, sparse = [], []
    for number, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices) and not options.sparse_as_dense:
            results[number] = gathered(gradient, options.op)
            sparse.append(number)
        elif gradient is not None:
            dense.append(number)
    if sparse and not dense:
        _compare_sparse(results, sparse, variables, options)
        return results
    # Before compression: its casts come at the end of the graph, and would hide the order of the gradients.
    order = order_of_readiness([_last_computed(gradients[number]) for number in dense])
    packed = [options.compression.compress(densified(gradients[number])) for number in dense]
    tensors = [tensor for tensor, _ in packed]
    reduction = _reduction([variables[number] for number in dense], tensors, order, options)
    for number, total, (_, context) in zip(dense, reduction(tensors), packed, strict=True):
        results[number] = options.compression.decompress(total, context)
    return results


def _compare_sparse(results: list[Any], sparse: list[int], variables: Sequence[Any], options: ReduceOptions) -> None:
    """Compare the ranks' weights where no gradient is dense: with the sum of a zero, before which ranks compare."""
    zero = tf.zeros([1])
    total = _reduction([None], [zero], [0], options, [variables[number] for number in sparse])([zero])
    for number in sparse:
        # In a graph nothing else waits for the sum.
        with tf.control_dependencies(total):
            values = tf.identity(results[number].values)
        results[number] = tf.IndexedSlices(values, results[number].indices, results[number].dense_shape)


def densified(gradient: Any) -> Any:
    """Return a sparse gradient as a tensor, and any other gradient unchanged."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _last_computed(gradient: Any) -> tf.Tensor:
    """Return the tensor that the computation of a gradient ends with."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def inner_variable(variable: Any) -> Any:
    """Return TensorFlow's variable inside a Keras variable, and any other object unchanged."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def name_of(variable: Any) -> str:
    """Return a variable's name without the numbers that Keras adds to a name that a process has used before."""
    # Ranks compare these names, and a rank may have built another model first.
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "tensor"
    return re.sub(r"_\d+(?=[/:]|$)", "", name.removesuffix(":0"))


def is_readable(variable: Any) -> bool:
    """Say whether a variable has a value outside of a graph."""
    with tf.init_scope():
        return isinstance(inner_variable(variable), tf.Variable) and tf.executing_eagerly()


def _comparison(description: str, variables: Sequence[Any]) -> Comparison:
    """Return the comparison of gradients with this description, and of these variables, between the ranks."""

    def values() -> list[Array]:
        return [np.asarray(variable.numpy()) for variable in variables]

    floats = [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]
    few = [floats[position] for position in sampled([int(np.prod(variable.shape)) for variable in floats])]
    return Comparison(description, values, _REMEDY, lambda: [np.asarray(variable.numpy()) for variable in few])


def _reduction(
    variables: Sequence[Any],
    tensors: Sequence[tf.Tensor],
    order: list[int],
    options: ReduceOptions,
    more: Sequence[Any] = (),
) -> Reduction:
    """Return the reduction of these gradients; eager code reuses that of the previous step.

    The ranks' values of the variables, and of `more`, are compared before.
    """
    specs, dtypes = described([name_of(variable) for variable in variables], tensors)
    current = state.get()
    # A tape also computes gradients of tensors. A tensor is another object in every step, so its id cannot be in the
    # key: each step would add an entry.
    readable = [variable if is_readable(variable) else None for variable in (*variables, *more)]
    key = (tuple(specs), options, tuple(None if variable is None else id(variable) for variable in readable))
    if tf.executing_eagerly() and key in current.reductions:
        return current.reductions[key]  # type: ignore[no-any-return]
    read = [variable for variable in readable if variable is not None]
    buckets = cut(specs, dtypes, order, cost=current.cost, most_bytes=options.most_bytes)
    # A function that is traced again continues the comparison of its first trace: perhaps only one rank traces again,
    # and the ranks must compare in the same steps.
    if key not in current.comparisons:
        lines = [f"{spec.name}: {spec.dtype} {list(spec.shape)}" for spec in specs]
        lines.append(f"in buckets: {[bucket.members for bucket in buckets]}")
        current.comparisons[key] = _comparison("\n".join(lines), read)
    starts = current.observe(buckets)
    compared = [inner_variable(variable) for variable in read]
    comparison = current.comparisons[key]
    reduction = Reduction(current.engine, buckets, comparison, op=options.op.value, compared=compared, starts=starts)
    if tf.executing_eagerly():
        current.reductions[key] = reduction
    return reduction


def gathered(gradient: tf.IndexedSlices, op: ReduceOp) -> tf.IndexedSlices:
    """Return the slices of all ranks, one rank after the other."""
    # An index may repeat. Optimizers add up the slices of one index, so nothing has to be summed here.
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
        # Each rank may look up another number of rows, so the first extent is unknown.
        values.set_shape([None, *gradient.values.shape[1:]])
        indices.set_shape([None])
    if op is ReduceOp.AVERAGE:
        values = values / tf.cast(engine.size, values.dtype)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
