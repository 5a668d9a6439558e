"""SMDDP v1's DistributedDataParallel: torch's own, on the job's `smddp` group, with v1's arguments."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as _Torchs

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.data_parallel.backend import ReduceGroup

# v1's default, and what its own examples pass: no wish of the user's.
_USUAL_CAP_MB = 25


class DistributedDataParallel(_Torchs):
    """Averages gradients over the ranks while the backward runs.

        from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel
        model = DistributedDataParallel(model.to(device), device_ids=[dist.get_local_rank()])

    A `bucket_cap_mb` other than v1's 25 is the size of all buckets; otherwise they are cut for the links. Further
    arguments are those of torch's class. Raises `ParallelError` before `init_process_group`.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[Any] | None = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float = _USUAL_CAP_MB,
        **others: Any,
    ) -> None:
        if not dist.is_initialized() or not isinstance(dist.group.WORLD, ReduceGroup):
            raise ParallelError(
                "DistributedDataParallel before smdistributed.dataparallel.torch.distributed.init_process_group():"
                " call that first"
            )
        if not broadcast_buffers:
            others["broadcast_buffers"] = False
        if bucket_cap_mb != _USUAL_CAP_MB:
            others["bucket_cap_mb"] = bucket_cap_mb
        super().__init__(
            module, device_ids=device_ids, output_device=output_device, process_group=process_group, **others
        )
