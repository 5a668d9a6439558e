"""Gradients of weights as the products that `core.deferral` puts off: which tensors are, and how to compute a sum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.deferral import Deferring, Product
from herringbone_parallel.tensorflow.model_parallel.runtime.functions import Flat, flat

# Operations whose results of several microbatches add up to that of all of them: their inputs are joined along these
# axes, and None is the shape of the result.
_OF_BATCHES: dict[str, tuple[int | None, ...]] = {
    "Conv2DBackpropFilter": (0, None, 0),
    "Conv3DBackpropFilterV2": (0, None, 0),
    "DepthwiseConv2dNativeBackpropFilter": (0, None, 0),
}
# The product of a layer over sequences (`EinsumDense`, so attention): one for each sample, of which the sum is taken.
_BATCHED = "BatchMatMulV2"
# What a product may go through and still be one; so it may a change of type.
_RESHAPES = frozenset({"Identity", "Reshape"})


@dataclass(frozen=True, slots=True)
class TracedProduct:
    """A gradient that is a product: the operation, the axes along which its inputs are joined, and what it makes."""

    product: Product
    operation: Any
    axes: tuple[int | None, ...]
    result: Any

    def sum_of(self, values: Mapping[Output, Sequence[Any]]) -> Any:
        """Add to the graph that is being traced the sum over microbatches, given what each has of the joined values."""
        if self.operation.type == _BATCHED:
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
        definition = tf.compat.v1.GraphDef()
        node = definition.node.add()
        node.CopyFrom(self.operation.node_def)
        node.attr.pop("_class", None)
        names = [f"given{number}" for number in range(len(inputs))]
        node.input[:] = names
        mapping = {f"{name}:0": given for name, given in zip(names, inputs, strict=True)}
        (made,) = tf.graph_util.import_graph_def(
            definition, input_map=mapping, return_elements=[f"{node.name}:0"], name=""
        )
        return self._shaped(made)

    def _shaped(self, made: Any) -> Any:
        return tf.reshape(tf.cast(made, self.result.dtype), self.result.shape)


@dataclass(frozen=True, slots=True)
class PutOff:
    """What a segment leaves for later: `takes` of `size` microbatches at once, which make the sums of `gives`.

    `function(count)` is for as many microbatches as there are; it takes each value of all of them, and then the next.
    It adds those that have a variable to it, and returns the others.
    """

    takes: tuple[Output, ...]
    gives: tuple[Output, ...]
    size: int
    function: Callable[[int], Flat]


def find(tensor: Any, number_of: Mapping[str, int]) -> TracedProduct | None:
    """Return the product that a tensor is, None where it is none or a shape is not known."""
    operation = tensor.op
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
    joined = [given for given, axis in zip(operation.inputs, axes, strict=False) if axis is not None]
    if not axes or not all(one.shape.is_fully_defined() for one in [*joined, operation.outputs[0], tensor]):
        return None
    values = tuple((number_of[one.op.name], one.value_index) for one in joined)
    return TracedProduct(Product(frozenset(nodes), values), operation, axes, tensor)


def _changes_type(operation: Any) -> bool:
    """Say whether an operation changes a type; for float16 the sum over several microbatches may be too large."""
    types = {*(tensor.dtype for tensor in (*operation.inputs, *operation.outputs))}
    return operation.type == "Cast" and tf.float16 not in types


def _sums_samples(operation: Any) -> bool:
    """Say whether an operation adds up the products of all samples, each the first factor's transpose by the second."""
    if operation.type != "Sum" or operation.inputs[0].op.type != _BATCHED:
        return False
    products, samples = operation.inputs[0].op, operation.inputs[1].op
    first, second = (given.shape for given in products.inputs)
    transposed = products.node_def.attr["adj_x"].b and not products.node_def.attr["adj_y"].b
    # What a sum is over is computed in the graph: where it undoes that a weight was the same for all samples.
    undone = samples.type == "BroadcastGradientArgs" and operation.outputs[0].shape.rank == 2
    return bool(transposed and undone and first.is_fully_defined() and first[:-1] == second[:-1])


def _axes_of(operation: Any) -> tuple[int | None, ...]:
    if operation.type == "MatMul":
        definition = operation.node_def.attr
        return (0 if definition["transpose_a"].b else 1, 1 if definition["transpose_b"].b else 0)
    return _OF_BATCHES.get(operation.type, ())


def bytes_of(tensor: Any) -> int:
    """Return the memory that a tensor of a known shape takes."""
    return int(math.prod(tensor.shape.as_list()) * tensor.dtype.size)


def make_put_off(
    deferring: Deferring,
    products: Mapping[Output, TracedProduct],
    tensor_of: Callable[[Output], Any],
    variables: Mapping[Output, Any],
    group: int,
) -> PutOff:
    """Return what a segment leaves for later; the sums with a variable are added to it."""
    takes = deferring.kept
    returned = [value for value in deferring.deferred if value not in variables]

    def compute(*tensors: Any) -> Any:
        count = len(tensors) // len(takes)
        parts = {value: tensors[number * count : (number + 1) * count] for number, value in enumerate(takes)}
        made = {value: products[value].sum_of(parts) for value in deferring.deferred}
        for value, total in made.items():
            if value in variables:
                variables[value].assign_add(total, read_value=False)
        return [made[value] for value in returned]

    @functools.cache
    def function(count: int) -> Flat:
        tensors = [tensor_of(value) for value in takes for _ in range(count)]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        with tf.init_scope():
            return flat(tf.function(compute, autograph=False).get_concrete_function(*specs))

    return PutOff(tuple(takes), tuple(returned), group, function)
