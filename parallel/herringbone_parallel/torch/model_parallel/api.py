"""Model parallelism for PyTorch: the SMP v1 API on torch 2.6 and newer.

# In a launched rank. Elsewhere: import herringbone_parallel.torch.model_parallel.api as smp
import smdistributed.modelparallel.torch as smp

smp.init()
model = smp.DistributedModel(Net())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

@smp.step
def train_step(model, images, labels):
    loss = F.cross_entropy(model(images), labels)
    model.backward(loss)
    return loss
"""

import importlib
from typing import Any

from herringbone_parallel.core.groups import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
)
from herringbone_parallel.torch.model_parallel import model, nn, patches
from herringbone_parallel.torch.model_parallel.activation_checkpointing import (
    checkpoint_sequential,
    set_activation_checkpointing,
)
from herringbone_parallel.torch.model_parallel.checkpoint.resume import (
    async_save_checkpoint,
    resume_from_checkpoint,
    save_checkpoint,
)
from herringbone_parallel.torch.model_parallel.checkpoint.save_load import load, save
from herringbone_parallel.torch.model_parallel.clipping import clip_grad_norm_
from herringbone_parallel.torch.model_parallel.communication import (
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    get_dp_process_group,
    get_mp_process_group,
    get_pp_process_group,
    get_rdp_process_group,
    get_tp_process_group,
    get_world_process_group,
    mp_barrier,
    recv_from,
    send,
)
from herringbone_parallel.torch.model_parallel.hugging_face.public_state import PublicState
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer
from herringbone_parallel.torch.model_parallel.output import StepOutput
from herringbone_parallel.torch.model_parallel.placement.creation import (
    delay_param_initialization,
    model_creation,
    set_partition,
)
from herringbone_parallel.torch.model_parallel.placement.placement import partition
from herringbone_parallel.torch.model_parallel.state import init, is_initialized, is_tracing, shutdown
from herringbone_parallel.torch.model_parallel.state import ranks as _ranks
from herringbone_parallel.torch.model_parallel.step import step
from herringbone_parallel.torch.model_parallel.tensor.marks import (
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
)

# `core.ranks` explains them.
rank = _ranks.rank
size = _ranks.size
local_rank = _ranks.local_rank
local_size = _ranks.local_size
pp_rank = _ranks.pp_rank
pp_size = _ranks.pp_size
tp_rank = _ranks.tp_rank
tp_size = _ranks.tp_size
mp_rank = _ranks.mp_rank
mp_size = _ranks.mp_size
rdp_rank = _ranks.rdp_rank
rdp_size = _ranks.rdp_size
dp_rank = _ranks.dp_rank
dp_size = _ranks.dp_size
get_world_group = _ranks.get_world_group
get_mp_group = _ranks.get_mp_group
get_dp_group = _ranks.get_dp_group
get_pp_group = _ranks.get_pp_group
get_tp_group = _ranks.get_tp_group
get_rdp_group = _ranks.get_rdp_group

__all__ = [
    "init", "is_initialized", "is_tracing", "shutdown",
    "step", "StepOutput", "DistributedModel", "DistributedOptimizer", "partition",
    "set_partition", "delay_param_initialization", "model_creation", "nn", "patches", "model", "state",
    "save", "load", "save_checkpoint", "async_save_checkpoint", "resume_from_checkpoint",
    "set_activation_checkpointing", "checkpoint_sequential", "clip_grad_norm_",
    "tensor_parallelism", "set_tensor_parallelism", "tp_register", "tp_register_with_module",
    "rank", "size", "local_rank", "local_size", "mp_rank", "mp_size", "pp_rank", "pp_size", "dp_rank", "dp_size",
    "tp_rank", "tp_size", "rdp_rank", "rdp_size",
    "get_mp_group", "get_dp_group", "get_pp_group", "get_tp_group", "get_rdp_group", "get_world_group",
    "CommGroup", "WORLD", "MP_GROUP", "DP_GROUP", "PP_GROUP", "TP_GROUP", "RDP_GROUP", "RankType",
    "send", "recv_from", "broadcast", "allgather", "barrier", "dp_barrier", "mp_barrier",
    "get_world_process_group", "get_mp_process_group", "get_dp_process_group", "get_pp_process_group",
    "get_tp_process_group", "get_rdp_process_group",
]  # fmt: skip

# `smp.state` of scripts and of Hugging Face's Trainer. The library's own state is the module of that name.
state = PublicState()


def __getattr__(name: str) -> Any:
    if name == "amp":
        # Imported on first use, because it needs a newer torch than the rest.
        return importlib.import_module("herringbone_parallel.torch.model_parallel.amp")
    if name == "optimizers":
        nn.refuse(f"smp.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
