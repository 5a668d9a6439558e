"""Save and resume everything that a training goes on with; see `Training` and `DataLoader`."""

from herringbone_parallel.mxnet.require import require_mxnet

require_mxnet()

from herringbone_parallel.mxnet.position.loader import DataLoader  # noqa: E402 - after the check for MXNet
from herringbone_parallel.mxnet.position.training import Training  # noqa: E402

__all__ = ["DataLoader", "Training"]
