"""Base class of LARS and LAMB in Keras: updates all layers of a step together, and computes all their ratios at once.

Keras's optimizers update one variable after the other. Here the norms of all layers form two short vectors, and one
formula in the graph gives all ratios: no value goes to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.layerwise import is_matrix
from herringbone_parallel.tensorflow.data_parallel.gradients import densified, inner_variable, name_of
from herringbone_parallel.tensorflow.require import require_keras_on_tensorflow

Formula = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Layer:
    """A weight of this step: TensorFlow's variable, its gradient, its weight decay, and whether it has a ratio."""

    number: int
    weight: tf.Variable
    gradient: tf.Tensor
    decay: float
    adapt: bool


class LayerWiseOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer that updates all layers together.

    Biases and the weights of normalisation layers (vectors, or weights with such names) have no weight decay and no
    ratio. `exclude_from_weight_decay` excludes further weights from the decay. A sparse gradient becomes a dense one.
    """

    def __init__(self, learning_rate: Any, **settings: Any) -> None:
        require_keras_on_tensorflow()
        rate = float(learning_rate) if isinstance(learning_rate, int) else learning_rate
        super().__init__(learning_rate=rate, **settings)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state; raises `ParallelError` for weights whose updates would be lost in rounding."""
        for variable in variables:
            if tf.as_dtype(variable.dtype) not in (tf.float32, tf.float64):
                raise ParallelError(
                    f"{type(self).__name__}: {name_of(variable)} is {tf.as_dtype(variable.dtype).name}; its steps are"
                    " smaller than this type can represent. Keep weights in float32 and compute in 16 bits: set the"
                    " policy mixed_bfloat16 or mixed_float16"
                )
        super().build(variables)

    def _apply_weight_decay(self, variables: Any) -> None:
        """Do nothing: the decay is part of each step, and Keras would apply it a second time."""

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ParallelError(
                f"{type(self).__name__} under a tf.distribute strategy of several replicas: their gradients would not"
                " be summed. Use smdistributed.dataparallel and its DistributedOptimizer"
            )
        layers = [self._layer(*pair) for pair in zip(grads, trainable_variables, strict=True)]
        self._update(layers, tf.cast(tf.convert_to_tensor(learning_rate), tf.float64))

    def _layer(self, gradient: Any, variable: Any) -> Layer:
        weight = inner_variable(variable)
        matrix = is_matrix(len(weight.shape), variable.name)
        decayed = matrix and self.weight_decay and self._use_weight_decay(variable)
        return Layer(
            number=self._get_variable_index(variable),
            weight=weight,
            gradient=tf.cast(densified(gradient), weight.dtype),
            decay=self.weight_decay if decayed else 0.0,
            adapt=matrix,
        )

    def _update(self, layers: Sequence[Layer], rate: tf.Tensor) -> None:
        raise NotImplementedError


def with_decay(direction: tf.Tensor, layer: Layer) -> tf.Tensor:
    """Return the direction plus the layer's weight decay."""
    return direction + layer.decay * layer.weight if layer.decay else direction


def rates(rate: tf.Tensor, layers: Sequence[Layer], updates: Sequence[tf.Tensor], formula: Formula) -> list[tf.Tensor]:
    """Return the rate of each layer: `rate`, times its ratio if the layer adapts.

    `formula` computes the ratios from the norms of the weights and the norms of the updates: two vectors in float64,
    with an element for each layer that adapts. If one of a layer's norms is 0, its ratio is 1.
    """
    adapting = [index for index, layer in enumerate(layers) if layer.adapt]
    layer_rates = [rate] * len(layers)
    if adapting:
        of_weights = norms([layers[index].weight for index in adapting])
        of_updates = norms([updates[index] for index in adapting])
        both = (of_weights > 0) & (of_updates > 0)
        ratios = tf.where(both, formula(of_weights, of_updates), tf.ones_like(of_weights))
        for index, layer_rate in zip(adapting, tf.unstack(rate * ratios), strict=True):
            layer_rates[index] = layer_rate
    return [tf.cast(layer_rate, layer.weight.dtype) for layer_rate, layer in zip(layer_rates, layers, strict=True)]


def norms(tensors: Sequence[Any]) -> tf.Tensor:
    """Return the norms of tensors as a vector in float64."""
    # `l2_loss` reads a tensor once and returns half of the sum of squares; `tf.norm` would store the squares.
    return tf.sqrt(2 * tf.stack([tf.cast(tf.nn.l2_loss(tensor), tf.float64) for tensor in tensors]))
