"""Finds gradients of weights that are products, and computes the sum of several microbatches' products at once.

`core.pipeline.deferral` decides which products are put off; this file knows TensorFlow's operations:

    [1] find              a gradient's operation, if it is a product whose sum over microbatches is one product
    [2] make_deferred     a function that computes the sums of a segment's products, for a group of microbatches
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.deferral import Deferring, Product
from herringbone_parallel.tensorflow.model_parallel.runtime.functions import FlatFunction, flat

# For these operations the sum of the results of several microbatches is the result for the joined microbatches. Each
# entry gives the axis along which an input is joined. None marks the input that holds the shape of the result.
_OF_BATCHES: dict[str, tuple[int | None, ...]] = {
    "Conv2DBackpropFilter": (0, None, 0),
    "Conv3DBackpropFilterV2": (0, None, 0),
    "DepthwiseConv2dNativeBackpropFilter": (0, None, 0),
}
# The product of a layer over sequences (`EinsumDense`, and so attention): one product per sample, then their sum.
_BATCHED = "BatchMatMulV2"
# A product may pass through these operations and remain a product. So it may through a change of type.
_RESHAPES = frozenset({"Identity", "Reshape"})


@dataclass(frozen=True, slots=True)
class TracedProduct:
    """A gradient that is a product: its operation, the axes along which the inputs are joined, and the result."""

    product: Product
    operation: Any
    axes: tuple[int | None, ...]
    result: Any

    def sum_of(self, values: Mapping[Output, Sequence[Any]]) -> Any:
        """Add the sum over microbatches to the graph that is being traced; `values` are the factors, by microbatch."""
        if self.operation.type == _BATCHED:
            # The samples of all microbatches become rows of two matrices. Their product sums over the rows, so it
            # replaces the product of each sample and the sum over the samples.
            first, second = (tf.concat(list(values[value]), 0) for value in self.product.joined)
            rows = [tf.reshape(factor, [-1, factor.shape[-1]]) for factor in (first, second)]
            return self._shaped(tf.matmul(*rows, transpose_a=True))
        joined = iter(self.product.joined)
        inputs: list[Any] = []
        for axis in self.axes:
            if axis is None:
                inputs.append(tf.constant(self.operation.outputs[0].shape.as_list(), tf.int32))
            else:
                parts = values[next(joined)]
                inputs.append(tf.concat(parts, axis) if len(parts) > 1 else parts[0])
        # Import a copy of the operation, because its attributes (strides, padding) differ from layer to layer.
        definition = tf.compat.v1.GraphDef()
        node = definition.node.add()
        node.CopyFrom(self.operation.node_def)
        # This attribute asks for the device of another operation, which the new graph lacks.
        node.attr.pop("_class", None)
        names = [f"given{number}" for number in range(len(inputs))]
        node.input[:] = names
        mapping = {f"{name}:0": tensor for name, tensor in zip(names, inputs, strict=True)}
        (total,) = tf.graph_util.import_graph_def(
            definition, input_map=mapping, return_elements=[f"{node.name}:0"], name=""
        )
        return self._shaped(total)

    def _shaped(self, total: Any) -> Any:
        # Stands in for the casts and reshapes between the operation and the gradient.
        return tf.reshape(tf.cast(total, self.result.dtype), self.result.shape)


@dataclass(frozen=True, slots=True)
class DeferredProducts:
    """The products that a segment puts off: it keeps `takes` of `size` microbatches, and then computes the sums.

    `function(count)` is the function for `count` microbatches. Its arguments are the first value of all microbatches,
    then the second value of all of them, and so on. It adds a sum to its variable if it has one; `gives` are the sums
    without a variable, which it returns.
    """

    takes: tuple[Output, ...]
    gives: tuple[Output, ...]
    size: int
    function: Callable[[int], FlatFunction]


def find(tensor: Any, number_of: Mapping[str, int]) -> TracedProduct | None:
    """Return the product that computes a tensor; None where there is none or a shape is unknown."""
    operation = tensor.op
    # All nodes on the way belong to the product: a segment that puts it off drops them together.
    nodes = {number_of[operation.name]}
    while operation.type in _RESHAPES or _changes_type(operation):
        operation = operation.inputs[0].op
        nodes.add(number_of[operation.name])
    if _sums_samples(operation):
        operation = operation.inputs[0].op
        nodes.add(number_of[operation.name])
        axes: tuple[int | None, ...] = (0, 0)
    else:
        axes = _axes_of(operation)
    joined = [factor for factor, axis in zip(operation.inputs, axes, strict=False) if axis is not None]
    # The function for a group is traced with full shapes, and the bytes to keep are computed from them.
    if not axes or not all(part.shape.is_fully_defined() for part in [*joined, operation.outputs[0], tensor]):
        return None
    values = tuple((number_of[factor.op.name], factor.value_index) for factor in joined)
    return TracedProduct(Product(frozenset(nodes), values), operation, axes, tensor)


def _changes_type(operation: Any) -> bool:
    """Say whether an operation changes a type, except from or to float16."""
    # The largest float16 is 65504: the sum over several microbatches may overflow where the single products do not.
    types = {*(tensor.dtype for tensor in (*operation.inputs, *operation.outputs))}
    return operation.type == "Cast" and tf.float16 not in types


def _sums_samples(operation: Any) -> bool:
    """Say whether an operation sums the products of all samples, each of the form transpose(first) x second."""
    if operation.type != "Sum" or operation.inputs[0].op.type != _BATCHED:
        return False
    products, samples = operation.inputs[0].op, operation.inputs[1].op
    first, second = (factor.shape for factor in products.inputs)
    transposed = products.node_def.attr["adj_x"].b and not products.node_def.attr["adj_y"].b
    # The graph computes the axes of the sum. BroadcastGradientArgs shows that the sum undoes a broadcast: one weight
    # was used for all samples. A result of rank 2 shows that only the axes of the weight remain.
    undone = samples.type == "BroadcastGradientArgs" and operation.outputs[0].shape.rank == 2
    return bool(transposed and undone and first.is_fully_defined() and first[:-1] == second[:-1])


def _axes_of(operation: Any) -> tuple[int | None, ...]:
    if operation.type == "MatMul":
        # The axis that the product sums over is the batch: axis 0 of a transposed first factor, and so on.
        definition = operation.node_def.attr
        return (0 if definition["transpose_a"].b else 1, 1 if definition["transpose_b"].b else 0)
    return _OF_BATCHES.get(operation.type, ())


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor whose shape is known."""
    return int(math.prod(tensor.shape.as_list()) * tensor.dtype.size)


def make_deferred(
    deferring: Deferring,
    products: Mapping[Output, TracedProduct],
    tensor_of: Callable[[Output], Any],
    variables: Mapping[Output, Any],
    group: int,
) -> DeferredProducts:
    """Return the products that a segment puts off; a sum with a variable is added to that variable."""
    takes = deferring.kept
    returned = [value for value in deferring.deferred if value not in variables]

    def compute(*tensors: Any) -> Any:
        count = len(tensors) // len(takes)
        parts = {value: tensors[number * count : (number + 1) * count] for number, value in enumerate(takes)}
        sums = {value: products[value].sum_of(parts) for value in deferring.deferred}
        for value, total in sums.items():
            if value in variables:
                # Without `read_value=False` each call would return a copy of the variable.
                variables[value].assign_add(total, read_value=False)
        return [sums[value] for value in returned]

    # The last group of a step may be smaller. Each size is traced once, when the first such group is full.
    @functools.cache
    def function(count: int) -> FlatFunction:
        tensors = [tensor_of(value) for value in takes for _ in range(count)]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        # `function` may be called while TensorFlow traces the user's function; this one must not become part of it.
        with tf.init_scope():
            return flat(tf.function(compute, autograph=False).get_concrete_function(*specs))

    return DeferredProducts(tuple(takes), tuple(returned), group, function)
