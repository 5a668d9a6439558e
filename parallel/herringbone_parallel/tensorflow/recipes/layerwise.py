"""What LARS and LAMB share in Keras: all layers of a step at hand at once, and one computation of all their ratios.

Keras's optimizers update one variable after the other. Here the norms of all layers are put side by side, and their
ratios come of one formula on two short vectors, in the graph: nothing goes to the host.
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
    """A weight of this step: TensorFlow's variable, its gradient, and how it is treated."""

    number: int
    weight: tf.Variable
    gradient: tf.Tensor
    decay: float
    adapt: bool


class LayerWiseOptimizer(keras.optimizers.Optimizer):
    """An optimizer of Keras that updates all layers together.

    Biases and what normalisation layers have (vectors, or named so) have no weight decay, and steps as they are without
    a ratio. `exclude_from_weight_decay` takes more from the decay. A sparse gradient becomes a dense one.
    """

    def __init__(self, learning_rate: Any, **settings: Any) -> None:
        require_keras_on_tensorflow()
        rate = float(learning_rate) if isinstance(learning_rate, int) else learning_rate
        super().__init__(learning_rate=rate, **settings)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state; raises `ParallelError` for weights whose updates would be lost in rounding."""
        for variable in variables:
            if tf.as_dtype(variable.dtype) not in (tf.float32, tf.float64):
                raise ParallelError(
                    f"{type(self).__name__}: {name_of(variable)} is {tf.as_dtype(variable.dtype).name}; its steps are"
                    " smaller than what that tells apart. Keep weights in float32 and compute in less: the policy"
                    " mixed_bfloat16 or mixed_float16"
                )
        super().build(variables)

    def _apply_weight_decay(self, variables: Any) -> None:
        """Keras would apply it by itself; here it is part of each step."""

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
    """Return the direction and the layer's weight decay."""
    return direction + layer.decay * layer.weight if layer.decay else direction


def rates(rate: tf.Tensor, layers: Sequence[Layer], updates: Sequence[tf.Tensor], formula: Formula) -> list[tf.Tensor]:
    """Return each layer's own rate: for those that adapt, times `formula(norms of the weights, norms of the updates)`.

    The formula gets two vectors in float64 with an element for each layer that adapts. Where one of its norms is 0, the
    rate stays as it is.
    """
    adapting = [place for place, layer in enumerate(layers) if layer.adapt]
    found = [rate] * len(layers)
    if adapting:
        of_weights = norms([layers[place].weight for place in adapting])
        of_updates = norms([updates[place] for place in adapting])
        both = (of_weights > 0) & (of_updates > 0)
        ratios = tf.where(both, formula(of_weights, of_updates), tf.ones_like(of_weights))
        for place, own in zip(adapting, tf.unstack(rate * ratios), strict=True):
            found[place] = own
    return [tf.cast(own, layer.weight.dtype) for own, layer in zip(found, layers, strict=True)]


def norms(tensors: Sequence[Any]) -> tf.Tensor:
    """Return the tensors' norms as a vector in float64; each tensor is read once, and nothing of its size is made."""
    return tf.sqrt(2 * tf.stack([tf.cast(tf.nn.l2_loss(tensor), tf.float64) for tensor in tensors]))
