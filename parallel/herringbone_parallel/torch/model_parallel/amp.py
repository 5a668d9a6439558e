"""`smp.amp`: loss scaling in which all ranks skip a step together. It needs torch 2.3, whose scaler knows the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """Scale the loss so that small float16 gradients survive; torch's scaler, agreed on by all ranks.

        scaler = smp.amp.GradScaler()
        ...
            model.backward(scaler.scale(loss))      # in the step function
        ...
        scaler.step(optimizer)                      # skipped on every rank when one has found an infinite gradient
        scaler.update()

    Arguments are torch's, but for the device, which is the library's. Every rank makes every call.
    Source: SMP v1, `smp.amp.GradScaler`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        device = state.get().device.type
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients on this rank by the scale, and agree with the others whether all were finite."""
        if not isinstance(optimizer, DistributedOptimizer):
            raise ParallelError("smp.amp.GradScaler takes the smp.DistributedOptimizer, not the optimizer inside it")
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        here = state.get()
        own = self._per_optimizer_states[id(optimizer)]
        # A rank without gradients has found nothing, and still has to hear of the others'.
        found = torch.zeros((), device=here.device)
        for flag in own["found_inf_per_device"].values():
            found = torch.maximum(found, flag.to(here.device))
        dist.all_reduce(found, dist.ReduceOp.MAX, group=here.groups[CommGroup.WORLD])
        own["found_inf_per_device"] = {here.device: found}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Update the parameters of this rank, unless a rank has found an infinite gradient."""
        if not isinstance(optimizer, DistributedOptimizer):
            raise ParallelError("smp.amp.GradScaler takes the smp.DistributedOptimizer, not the optimizer inside it")
        return super().step(optimizer, *args, **kwargs)
