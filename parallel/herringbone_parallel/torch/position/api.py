"""Save and resume everything that a training goes on with; see `Training`. `Shards` reads whole files."""

from __future__ import annotations

from herringbone_parallel.torch.position.shards import Shards
from herringbone_parallel.torch.position.training import Training

__all__ = ["Shards", "Training"]
