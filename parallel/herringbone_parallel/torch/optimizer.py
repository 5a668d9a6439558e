"""`DistributedOptimizer`: a torch optimizer that updates what lives on this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from herringbone_parallel.torch import state
from herringbone_spec.errors import ParallelError


class DistributedOptimizer(torch.optim.Optimizer):
    """Wrap any torch optimizer; learning-rate schedulers take the wrapper as they take the optimizer.

        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    The optimizer may be made before or after `DistributedModel`. Each rank updates the parameters it owns.
    Optimizers that look at all parameters at once (a global norm) see those of this rank only.
    Source: SMP v1, `smp.DistributedOptimizer`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # The base class is not initialised: param groups and state are those of the wrapped optimizer.
        self.optimizer = optimizer
        model = state.get().model
        if model is None:
            raise ParallelError("make the smp.DistributedModel before the smp.DistributedOptimizer")
        if model.partitioned:
            self._keep_local()
        else:
            model.register_post_partition_hook(lambda _: self._keep_local())

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update this rank's parameters."""
        if closure is not None:
            raise ParallelError("optimizer.step(closure) is not supported: the closure would have to run on every rank")
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of this rank's parameters."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state dict: that of this rank's parameters."""
        return self.optimizer.state_dict()

    def local_state_dict(self) -> dict[str, Any]:
        """Return the state dict of this rank's parameters."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `local_state_dict` returned on a rank with the same parameters."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def _keep_local(self) -> None:
        """Let go of the parameters that live elsewhere, and of their memory."""
        model = state.get().model
        assert model is not None
        mine = {id(parameter) for parameter in model.local_parameters()}
        known = mine if model.assigned else None
        for group in self.optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if known is None or id(parameter) in known]
