"""Save and resume everything that a training goes on with; see `Training`."""

from __future__ import annotations

from herringbone_parallel.torch.position.training import Training

__all__ = ["Training"]
