"""Model parallelism for PyTorch: the SMP v1 API on any torch from 2.2.

import smdistributed.modelparallel.torch as smp     # in a launched rank; elsewhere: herringbone_parallel.torch

smp.init()
model = smp.DistributedModel(Net())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

@smp.step
def train_step(model, images, labels):
    loss = F.cross_entropy(model(images), labels)
    model.backward(loss)
    return loss
"""

from herringbone_parallel.torch.checkpoint import save
from herringbone_parallel.torch.model import DistributedModel
from herringbone_parallel.torch.optimizer import DistributedOptimizer
from herringbone_parallel.torch.output import StepOutput
from herringbone_parallel.torch.placement import partition
from herringbone_parallel.torch.ranks import (
    barrier,
    dp_rank,
    dp_size,
    get_dp_group,
    get_mp_group,
    get_pp_group,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from herringbone_parallel.torch.state import init, is_initialized, shutdown
from herringbone_parallel.torch.step import step

__all__ = [
    "init", "is_initialized", "shutdown",
    "step", "StepOutput", "DistributedModel", "DistributedOptimizer", "partition", "save",
    "rank", "size", "local_rank", "local_size", "mp_rank", "mp_size", "pp_rank", "pp_size", "dp_rank", "dp_size",
    "tp_rank", "tp_size", "rdp_rank", "rdp_size", "get_mp_group", "get_dp_group", "get_pp_group", "barrier",
]  # fmt: skip
