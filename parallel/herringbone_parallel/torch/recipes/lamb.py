"""LAMB: Adam with steps in proportion to the weights of each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.adam import adam

from herringbone_parallel.core.recipes.layerwise import require_lamb
from herringbone_parallel.torch.recipes.multi_tensor import MultiTensorOptimizer, Tensors, ratios


class LAMB(MultiTensorOptimizer):
    """Layer-wise adaptive moments, all layers at once.

        optimizer = LAMB(weight_groups(model, weight_decay=0.01), lr=2e-3)

        r = Adam's direction, corrected for the bias of its first steps: m / (sqrt(v) + eps)
        u = r + weight_decay w
        w = w - lr (|w| / |u|) u              for each layer; without the ratio if `adapt` is False

    Settings may differ between parameter groups. Source: You et al., arXiv 1904.00962, algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        require_lamb(rate=lr, betas=betas, epsilon=eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; raises `ParallelError` for parameters in 16 bits."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        # With this key, torch moves a loaded count of steps to the parameter's device, where the fused kernel needs it.
        group["fused"] = all(self._is_fused(parameter.device) for parameter in group["params"])

    def _update(self, group: dict[str, Any], weights: Tensors) -> None:
        updates = self._direction(group, weights)
        # `updates` is -u: Adam gives -r.
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=-group["weight_decay"])
        rate = float(group["lr"])
        if group["adapt"]:
            layer_ratios = ratios(weights, updates, lambda w, u: w / u)
            torch._foreach_mul_(updates, [rate * ratio for ratio in layer_ratios])
            torch._foreach_add_(weights, updates)
        else:
            torch._foreach_add_(weights, updates, alpha=rate)

    def _direction(self, group: dict[str, Any], weights: Tensors) -> Tensors:
        """Return -r: the step of torch's own Adam from zero weights, at a rate of 1."""
        for weight in weights:
            if not self.state[weight]:
                device = weight.device if group["fused"] else None
                self.state[weight] = {
                    "step": torch.zeros((), device=device),
                    "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
                }
        states = [self.state[weight] for weight in weights]
        direction = [torch.empty_like(weight, memory_format=torch.preserve_format) for weight in weights]
        # Adam adds its step to the weights that it gets, so they start from zero.
        torch._foreach_zero_(direction)
        adam(
            direction,
            [weight.grad for weight in weights if weight.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"] or None,
            foreach=not group["fused"] or None,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=1.0,
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
        return direction
