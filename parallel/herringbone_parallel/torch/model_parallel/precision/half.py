"""The 16-bit type of a job (`fp16`, `bf16`): a model's parameters in it, and the casts at the model's borders."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from herringbone_contract.model_parallel.values import Precision
from herringbone_parallel.core.structure import replace_leaves

_HALF_TYPES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_WIDE_TYPES = (torch.float32, torch.float64)


def half_type(precision: Precision) -> torch.dtype | None:
    """Return the 16-bit type of the job's precision; None for `fp32`."""
    return _HALF_TYPES.get(precision)


def parameter_dtype(precision: Precision, *, fp16_params: bool) -> torch.dtype | None:
    """Return the type in which `smp.model_creation` makes parameters; None for torch's default."""
    return torch.float16 if fp16_params and precision == "fp32" else half_type(precision)


def convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Change the floating-point parameters and buffers to `dtype`; they stay the same objects.

    BatchNorm stays as it is: running statistics would lose most of their digits, and torch normalises 16-bit inputs
    with 32-bit statistics.
    """
    for inner in module.modules():
        if not isinstance(inner, nn.modules.batchnorm._BatchNorm):
            # `_apply`, because recurrent layers keep a flat copy of their weights besides.
            apply: Any = inner._apply
            apply(lambda tensor: tensor.to(dtype) if tensor.dtype in _WIDE_TYPES else tensor, recurse=False)


def narrowed(values: Any, dtype: torch.dtype) -> Any:
    """Return the structure with its 32- and 64-bit floating-point tensors in `dtype`."""
    return replace_leaves(
        values, lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE_TYPES else leaf
    )


def widened(values: Any, dtype: torch.dtype) -> Any:
    """Return the structure with its tensors of type `dtype` in float32."""
    return replace_leaves(
        values, lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype else leaf
    )
