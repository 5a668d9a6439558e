"""Gradients of layers, microbatch by microbatch and as one product over all microbatches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.tensorflow.model_parallel.runtime.deferral import find

MICROBATCHES = 3
LAYERS = {
    "dense": (keras.layers.Dense, (5,), {"units": 4}),
    "dense of sequences": (keras.layers.Dense, (4, 5), {"units": 4}),
    "sum of products": (keras.layers.EinsumDense, (4, 5), {"equation": "abc,cde->abde", "output_shape": (None, 2, 3)}),
    "convolution": (keras.layers.Conv2D, (6, 6, 2), {"filters": 4, "kernel_size": 3, "strides": 2}),
    "convolution of sequences": (keras.layers.Conv1D, (6, 2), {"filters": 4, "kernel_size": 3, "padding": "same"}),
    "convolution of volumes": (keras.layers.Conv3D, (4, 4, 4, 2), {"filters": 4, "kernel_size": 2}),
    "depthwise": (keras.layers.DepthwiseConv2D, (6, 6, 2), {"kernel_size": 3}),
}


def compare(name: str, policy: str = "float32") -> Any:
    """Return the sum of the kernel's gradients over microbatches, computed in both ways; None if it is no product."""
    kind, shape, how = LAYERS[name]
    layer = kind(**how, dtype=policy)
    layer.build((None, *shape))
    kernel = layer.trainable_variables[0]

    def gradient(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.cast(layer(inputs), tf.float32)))
        return tape.gradient(loss, kernel.value)

    concrete = tf.function(gradient).get_concrete_function(tf.TensorSpec((2, *shape)))
    graph = concrete.graph
    (result,) = graph.outputs
    operations = graph.get_operations()
    product = find(result, {operation.name: number for number, operation in enumerate(operations)})
    if product is None:
        return None
    factors = [operations[number].outputs[output] for number, output in product.product.joined]
    microbatches = np.random.default_rng(1).normal(size=(MICROBATCHES, 2, *shape)).astype(np.float32)
    captured = [outer for outer, _ in graph.captures]
    inner = [inside for _, inside in graph.captures]
    values = tf.compat.v1.wrap_function(
        lambda *tensors: tf.graph_util.import_graph_def(
            graph.as_graph_def(),
            input_map={
                placeholder.name: tensor for placeholder, tensor in zip([graph.inputs[0], *inner], tensors, strict=True)
            },
            return_elements=[factor.name for factor in factors],
            name="",
        ),
        [tf.TensorSpec((2, *shape)), *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inner)],
    )
    kept = [values(tf.constant(microbatch), *captured) for microbatch in microbatches]
    together = tf.function(lambda parts: product.sum_of(dict(zip(product.product.joined, parts, strict=True))))(
        list(map(list, zip(*kept, strict=True)))
    )
    return sum(np.array(concrete(tf.constant(microbatch))) for microbatch in microbatches), np.array(together)
