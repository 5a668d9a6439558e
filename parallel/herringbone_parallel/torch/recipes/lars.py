"""LARS: SGD with momentum, with steps in proportion to the weights of each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.sgd import sgd

from herringbone_parallel.core.recipes.layerwise import require_lars
from herringbone_parallel.torch.recipes.multi_tensor import MultiTensorOptimizer, Tensors, ratios


class LARS(MultiTensorOptimizer):
    """Layer-wise adaptive rate scaling, all layers at once.

        optimizer = LARS(weight_groups(model, weight_decay=5e-5), lr=3.2)

        ratio    = trust |w| / (|g| + weight_decay |w|)      for each layer; 1 if `adapt` is False
        velocity = momentum velocity + lr ratio (g + weight_decay w)
        w        = w - velocity

    The learning rate is part of the velocity, so that past steps keep their length when the rate changes. Settings may
    differ between parameter groups. Source: You et al., arXiv 1708.03888, algorithm 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        require_lars(rate=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any], weights: Tensors) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        decay, rate = group["weight_decay"], float(group["lr"])
        # g + weight_decay w, for all layers in one call.
        scaled = list(torch._foreach_add(gradients, weights, alpha=decay))
        if group["adapt"]:
            trust = group["trust"]
            layer_ratios = ratios(weights, gradients, lambda w, g: trust * w / (g + decay * w))
            torch._foreach_mul_(scaled, [rate * ratio for ratio in layer_ratios])
        else:
            torch._foreach_mul_(scaled, rate)
        # `scaled` includes the rate, so the rest is torch's own SGD at a rate of 1.
        velocities = [self.state[weight].get("velocity") for weight in weights]
        sgd(
            weights,
            scaled,
            velocities,
            fused=self._is_fused(weights[0].device) or None,
            foreach=not self._is_fused(weights[0].device) or None,
            weight_decay=0.0,
            momentum=group["momentum"],
            lr=1.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        # torch's SGD has put the velocities of the first step into the list.
        for weight, velocity in zip(weights, velocities, strict=True):
            self.state[weight]["velocity"] = velocity
