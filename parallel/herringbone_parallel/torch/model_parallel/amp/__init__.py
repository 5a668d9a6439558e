"""`smp.amp`: loss scaling in which all ranks skip a step together. It needs torch 2.3, the first with a CPU scaler."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.between_steps import check_between_steps
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """Scale the loss so that small float16 gradients do not become zero: torch's scaler, with one result on all ranks.

        scaler = smp.amp.GradScaler()
        ...
            model.backward(scaler.scale(loss))      # in the step function
        ...
        scaler.step(optimizer)                      # skipped on every rank when one has found an infinite gradient
        scaler.update()

    Arguments are torch's, except for the device, which is this rank's. Every rank must make every call.
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
        """Divide the gradients on this rank by the scale, and agree with the other ranks whether all were finite."""
        _check(optimizer)
        check_between_steps("scaler.unscale_()")
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        library = state.get()
        scaler_state = self._per_optimizer_states[id(optimizer)]
        # A rank without gradients has no flag, but takes part: it must skip the step with the others.
        infinite = torch.zeros((), device=library.device)
        for flag in scaler_state["found_inf_per_device"].values():
            infinite = torch.maximum(infinite, flag.to(library.device))
        dist.all_reduce(infinite, dist.ReduceOp.MAX, group=library.groups[CommGroup.WORLD])
        scaler_state["found_inf_per_device"] = {library.device: infinite}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Update the parameters of this rank, unless a rank has found an infinite gradient."""
        _check(optimizer)
        check_between_steps("scaler.step()")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapt the scale; the same on every rank."""
        check_between_steps("scaler.update()")
        super().update(new_scale)


def _check(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, DistributedOptimizer):
        raise ParallelError("smp.amp.GradScaler takes the smp.DistributedOptimizer, not the optimizer inside it")
    if optimizer.scales:
        raise ParallelError(
            "smp.amp.GradScaler with an smp.DistributedOptimizer that scales the loss itself, or has 16-bit parameters"
            " (fp16, bf16): leave one of them out"
        )
