"""LAMB: Adam with a step for each layer that is proportional to the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from herringbone_parallel.core.recipes.layerwise import require_lamb
from herringbone_parallel.tensorflow.data_parallel.gradients import inner_variable
from herringbone_parallel.tensorflow.recipes.layerwise import Layer, LayerWiseOptimizer, rates, with_decay


@keras.saving.register_keras_serializable(package="herringbone")
class LAMB(LayerWiseOptimizer):
    """Layer-wise adaptive moments, all layers at once; each step equals that of `herringbone_parallel.torch.recipes`.

        model.compile(LAMB(2e-3, weight_decay=0.01), loss=...)

        r = Adam's direction, corrected for the bias of its first steps: m / (sqrt(v) + epsilon)
        u = r + weight_decay w
        w = w - rate (|w| / |u|) u            for each layer; without the ratio for biases and normalisation

    `keras.optimizers.Lamb` differs: its weight decay is outside of the ratio, and biases have a ratio, too. `settings`:
    other arguments of Keras's optimizers (`global_clipnorm`, `use_ema`). Source: You et al., arXiv 1904.00962,
    algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        **settings: Any,
    ) -> None:
        rate = learning_rate if isinstance(learning_rate, int | float) else 0.0
        require_lamb(rate=rate, betas=(beta_1, beta_2), epsilon=epsilon, weight_decay=weight_decay)
        super().__init__(learning_rate, weight_decay=weight_decay, **settings)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables: Sequence[Any]) -> None:
        """Create both moments of each variable."""
        if not self.built:
            super().build(variables)
            self._firsts, self._seconds = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def get_config(self) -> dict[str, Any]:
        """Return the settings, for a saved model."""
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}

    def _update(self, layers: Sequence[Layer], rate: tf.Tensor) -> None:
        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, tf.float64)
        # A running mean that began at 0 has reached only this fraction of its value.
        corrections = 1 - self.beta_1**step, 1 - self.beta_2**step
        updates = [with_decay(self._direction(layer, *corrections), layer) for layer in layers]
        layer_rates = rates(rate, layers, updates, lambda weights, updates: weights / updates)
        for layer, update, layer_rate in zip(layers, updates, layer_rates, strict=True):
            layer.weight.assign_sub(layer_rate * update)

    def _direction(self, layer: Layer, first_correction: tf.Tensor, second_correction: tf.Tensor) -> tf.Tensor:
        first, second = (inner_variable(moments[layer.number]) for moments in (self._firsts, self._seconds))
        mean = first.assign_add((1 - self.beta_1) * (layer.gradient - first))
        square = second.assign_add((1 - self.beta_2) * (tf.square(layer.gradient) - second))
        # Both corrections are moved into two scalars. Corrected moments would take two more passes over the layer.
        root, dtype = tf.sqrt(second_correction), layer.weight.dtype
        return mean * tf.cast(root / first_correction, dtype) / (tf.sqrt(square) + tf.cast(self.epsilon * root, dtype))
