"""The data-parallel library for MXNet, by Horovod's names: what `import horovod.mxnet as hvd` is in a launched rank.

    hvd.init()
    net.initialize()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

AWS never had a library of its own for MXNet; its example scripts use Horovod, which cannot be built any more. In the
ranks of a job under `mpi` these names are there when the real package is not; what they cannot do they refuse.
"""

from herringbone_parallel.mxnet.require import require_mxnet

require_mxnet()

from herringbone_parallel.mxnet.operations import (  # noqa: E402 - MXNet first, or say what is missing
    allgather,
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
)
from herringbone_parallel.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from herringbone_parallel.mxnet.parameters import broadcast_parameters  # noqa: E402
from herringbone_parallel.mxnet.trainer import DistributedTrainer  # noqa: E402
from herringbone_parallel.reduce.horovod import (  # noqa: E402
    Average,
    Compression,
    Max,
    Min,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

# ranks
__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"]
# arrays and objects
__all__ += ["allreduce", "allreduce_", "allgather", "broadcast", "broadcast_", "broadcast_object", "allgather_object"]
__all__ += ["barrier", "Average", "Sum", "Min", "Max", "Compression"]
# parameters and gradients
__all__ += ["broadcast_parameters", "DistributedTrainer", "DistributedOptimizer"]
