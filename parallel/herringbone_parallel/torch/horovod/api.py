"""Horovod's names for PyTorch that example scripts use: `import horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Horovod 0.28.1 cannot be built for current frameworks. In the ranks of a job these names exist if the real package is
not installed. Unsupported arguments raise an error.
"""

from herringbone_parallel.reduce.horovod import (
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
from herringbone_parallel.torch.horovod.objects import broadcast_optimizer_state, broadcast_parameters
from herringbone_parallel.torch.horovod.operations import (
    allgather,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    poll,
    synchronize,
)
from herringbone_parallel.torch.horovod.optimizer import DistributedOptimizer

__all__ = [
    "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size",
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "allgather", "broadcast", "broadcast_", "barrier",
    "poll", "synchronize", "Average", "Sum", "Min", "Max", "Compression",
    "broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "allgather_object",
    "DistributedOptimizer",
]  # fmt: skip
