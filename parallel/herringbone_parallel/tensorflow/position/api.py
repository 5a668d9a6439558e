"""Save and resume everything that a training goes on with; see `Training` and `Samples`."""

from __future__ import annotations

from herringbone_parallel.tensorflow.position.samples import Samples
from herringbone_parallel.tensorflow.position.training import Training

__all__ = ["Samples", "Training"]
