"""SMDDP v1's DistributedDataParallel: torch's class, on the job's `smddp` group, with v1's arguments."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as _TorchsClass

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.data_parallel.backend import NAME

# v1's default, which its examples also pass, so it does not count as the user's choice.
_DEFAULT_CAP_MB = 25


class DistributedDataParallel(_TorchsClass):
    """Averages gradients over the ranks while the backward runs.

        from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel
        model = DistributedDataParallel(model.to(device), device_ids=[dist.get_local_rank()])

    A `bucket_cap_mb` other than v1's 25 is the size of all buckets; otherwise their sizes suit the links. Other
    arguments are those of torch's class. Raises `ParallelError` before `init_process_group`.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[Any] | None = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float = _DEFAULT_CAP_MB,
        **others: Any,
    ) -> None:
        if not dist.is_initialized() or dist.get_backend() != NAME:
            raise ParallelError(
                "DistributedDataParallel before smdistributed.dataparallel.torch.distributed.init_process_group():"
                " call that first"
            )
        # Pass on only what differs from the defaults, because `ddp` fills in the arguments that are left out.
        if not broadcast_buffers:
            others["broadcast_buffers"] = False
        if bucket_cap_mb != _DEFAULT_CAP_MB:
            others["bucket_cap_mb"] = bucket_cap_mb
        super().__init__(
            module, device_ids=device_ids, output_device=output_device, process_group=process_group, **others
        )
