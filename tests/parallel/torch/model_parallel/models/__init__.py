"""Models that a tracer cannot split, or that easily get wrong gradients, by theme."""

from __future__ import annotations

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models import flow, functions, gradients, layers, sharing, structures
from tests.parallel.torch.model_parallel.models.case import BATCH, CLASSES, WIDTH, Case

__all__ = ["ALL", "BATCH", "CLASSES", "WIDTH", "Case", "build"]

ALL: dict[str, Case] = {
    **flow.CASES,
    **functions.CASES,
    **gradients.CASES,
    **sharing.CASES,
    **structures.CASES,
    **layers.CASES,
}


def build(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a model, its input and its target: the same numbers at every call."""
    return ALL[name].build(dtype)
