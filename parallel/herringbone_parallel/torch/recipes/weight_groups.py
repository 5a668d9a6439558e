"""Groups of parameters with and without weight decay: matrices have it, biases and scales have not."""

from __future__ import annotations

from typing import Any

from torch import nn


def weight_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trained parameters as two groups for an optimizer.

        optimizer = LAMB(weight_groups(model, weight_decay=0.01), lr=2e-3)

    Biases and the vectors of normalisation layers (one dimension or none) have no weight decay. `adapt` is False for
    them, so LARS and LAMB do not change the length of their steps. Source: Goyal et al., arXiv 1706.02677, 5.3.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Weights of linear and convolution layers have two dimensions or more.
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay, "adapt": True},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0, "adapt": False},
    ]
    return [group for group in groups if group["params"]]
