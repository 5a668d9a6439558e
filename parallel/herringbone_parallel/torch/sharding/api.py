"""The library's public names: `import torch.sagemaker as tsm` in a launched rank.

    tsm.init()
    model = tsm.transform(Model())                   # layers and sequences split over ranks
    model = FullyShardedDataParallel(model)          # the training state, over the job's mesh

or `tsm.shard(Model())`, which does both with torch's `fully_shard`.
"""

from herringbone_parallel.torch.sharding.attention import FlashGroupedQueryAttention, FlashSelfAttention
from herringbone_parallel.torch.sharding.delayed_param import DelayedParamIniter
from herringbone_parallel.torch.sharding.numbers import state
from herringbone_parallel.torch.sharding.scripts import clip_grad_norm_
from herringbone_parallel.torch.sharding.state import init, is_initialized, shutdown
from herringbone_parallel.torch.sharding.transform import shard, transform
from herringbone_parallel.torch.sharding.unavailable import MoEConfig

__all__ = [
    "DelayedParamIniter",
    "FlashGroupedQueryAttention",
    "FlashSelfAttention",
    "MoEConfig",
    "clip_grad_norm_",
    "init",
    "is_initialized",
    "shard",
    "shutdown",
    "state",
    "transform",
]
