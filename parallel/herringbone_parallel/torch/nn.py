"""`smp.nn`: SMP v1 keeps its tensor-parallel and fused layers here, and this release has none of them."""

from __future__ import annotations

from typing import Any

from herringbone_parallel.torch.unavailable import LAYERS, refuse


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        refuse(f"smp.nn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
