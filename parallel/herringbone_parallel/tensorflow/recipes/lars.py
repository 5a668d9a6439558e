"""LARS: SGD with momentum, with a step for each layer that is proportional to the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from herringbone_parallel.core.recipes.layerwise import require_lars
from herringbone_parallel.tensorflow.data_parallel.gradients import inner_variable
from herringbone_parallel.tensorflow.recipes.layerwise import Layer, LayerWiseOptimizer, rates, with_decay


@keras.saving.register_keras_serializable(package="herringbone")
class LARS(LayerWiseOptimizer):
    """Layer-wise adaptive rate scaling, all layers at once; a step equals that of `herringbone_parallel.torch.recipes`.

        model.compile(LARS(3.2, weight_decay=5e-5), loss=...)

        ratio    = trust |w| / (|g| + weight_decay |w|)      for each layer; 1 for biases and normalisation
        velocity = momentum velocity + rate ratio (g + weight_decay w)
        w        = w - velocity

    The learning rate, a number or a schedule, is part of the velocity: when the rate changes, past steps keep their
    length. `settings`: other arguments of Keras's optimizers (`global_clipnorm`, `use_ema`). Source: You et al., arXiv
    1708.03888, algorithm 1.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        **settings: Any,
    ) -> None:
        rate = learning_rate if isinstance(learning_rate, int | float) else 0.0
        require_lars(rate=rate, momentum=momentum, weight_decay=weight_decay, trust=trust)
        super().__init__(learning_rate, weight_decay=weight_decay, **settings)
        self.momentum, self.trust = momentum, trust

    def build(self, variables: Sequence[Any]) -> None:
        """Create a velocity for each variable."""
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def get_config(self) -> dict[str, Any]:
        """Return the settings, for a saved model."""
        return {**super().get_config(), "momentum": self.momentum, "trust": self.trust}

    def _update(self, layers: Sequence[Layer], rate: tf.Tensor) -> None:
        decays = tf.constant([layer.decay for layer in layers if layer.adapt], tf.float64)
        layer_rates = rates(
            rate,
            layers,
            [layer.gradient for layer in layers],
            lambda weights, gradients: self.trust * weights / (gradients + decays * weights),
        )
        for layer, layer_rate in zip(layers, layer_rates, strict=True):
            # One kernel updates velocity and weight in one pass over the memory. Its velocity has the sign of the step.
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=layer.weight.handle,
                accum=inner_variable(self._velocities[layer.number]).handle,
                lr=layer_rate,
                grad=with_decay(layer.gradient, layer),
                momentum=tf.constant(self.momentum, layer.weight.dtype),
            )
