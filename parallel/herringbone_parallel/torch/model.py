"""`DistributedModel`: a module whose parts live on the ranks of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from herringbone_parallel.torch import state
from herringbone_parallel.torch.groups import CommGroup
from herringbone_parallel.torch.microbatch import OWNER_ATTRIBUTE, current
from herringbone_parallel.torch.placement import assign_by_bytes, assign_by_hand, settle
from herringbone_spec.errors import ParallelError


class DistributedModel(nn.Module):
    """Wrap the model of a script; the only one, called and differentiated inside `@smp.step` only.

        model = smp.DistributedModel(Net())

    The module is partitioned at the first step (at once with one partition): each rank then holds the parameters of its
    own part, and elsewhere they are on the `meta` device. Initialise from the same seed on every rank, or do not mind:
    a parameter's first value is that of the rank that keeps it.

    `average_grads_across_microbatches=False` sums instead. Source: SMP v1, `smp.DistributedModel`.
    """

    def __init__(self, module: nn.Module, *, average_grads_across_microbatches: bool = True) -> None:
        super().__init__()
        here = state.get()
        if here.model is not None:
            raise ParallelError("a script has one DistributedModel; put several models in one module")
        if current() is not None:
            raise ParallelError("DistributedModel inside a step; make it before the first one")
        self.module = module
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self._assigned: dict[str, int] | None = None
        self._after_partition: list[Callable[..., Any]] = []
        here.model = self
        if here.settings.partitions == 1:
            self.settle()

    @property
    def partitioned(self) -> bool:
        """Say whether the parameters are where they belong."""
        return self._assigned is not None

    @property
    def assigned(self) -> dict[str, int]:
        """The partition of each module that has parameters or buffers of its own, by dotted path."""
        return dict(self._assigned or {})

    def settle(self) -> None:
        """Partition the model; a second call does nothing."""
        if self._assigned is not None:
            return
        here = state.get()
        settings = here.settings
        if settings.partitions == 1:
            self._assigned = {}
            self.module.to(here.device)
        else:
            if settings.auto_partition:
                self._assigned = assign_by_bytes(self.module, settings.partitions)
            else:
                self._assigned = assign_by_hand(self.module, settings.partitions, settings.default_partition)
            settle(self.module, self._assigned, here.pp_rank, here.device)
        for hook in self._after_partition:
            hook(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if current() is None:
            raise ParallelError("a distributed model runs inside a function decorated with @smp.step")
        return self.module(*args, **kwargs)

    def backward(self, tensors: torch.Tensor | Sequence[torch.Tensor], grad_tensors: Any = None) -> None:
        """Compute the gradients of all parameters, each on its own rank; replaces `loss.backward()` inside a step."""
        microbatch = current()
        if microbatch is None:
            raise ParallelError("model.backward() belongs inside a function decorated with @smp.step")
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
        if grad_tensors is None:
            gradients = [None] * len(several)
        microbatch.backward(several, gradients)

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that live on this rank."""
        for name, parameter in self.module.named_parameters():
            if not parameter.is_meta:
                yield name, parameter

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that live on this rank."""
        for _, parameter in self.local_named_parameters():
            yield parameter

    def local_state_dict(self) -> dict[str, Any]:
        """Return the part of the state dict that lives on this rank, marked with `_smp_is_partial`."""
        found = {name: tensor for name, tensor in self.module.state_dict().items() if not tensor.is_meta}
        return {**found, "_smp_is_partial": state.get().settings.partitions > 1}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # torch's overloads, passed on
        """Return the whole state dict, on the CPU, gathered from the pipeline; every one of its ranks must call it."""
        own = self.module.state_dict(*args, **kwargs)
        here = state.get()
        if here.settings.partitions == 1 or not self.partitioned:
            return own
        local = {name: tensor.detach().cpu() for name, tensor in own.items() if not tensor.is_meta}
        parts: list[Any] = [None] * here.settings.partitions
        dist.all_gather_object(parts, local, group=here.groups[CommGroup.PP_GROUP])
        merged = {name: tensor for part in reversed(parts) for name, tensor in part.items()}
        return {name: merged[name] for name in own}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a whole state dict; each rank takes what lives on it."""
        if not self.partitioned or state.get().settings.partitions == 1:
            return self.module.load_state_dict(state_dict, strict=strict, assign=assign)
        expected = set(self.module.state_dict())
        given = set(state_dict) - {"_smp_is_partial"}
        if strict and expected != given:
            raise ParallelError(
                f"the state dict is of another model: missing {sorted(expected - given)[:5]},"
                f" unexpected {sorted(given - expected)[:5]}"
            )
        local = {name: state_dict[name] for name in self.local_state_dict() if name in state_dict}
        return self.module.load_state_dict(local, strict=False, assign=assign)

    def register_post_partition_hook(self, hook: Callable[..., Any]) -> None:
        """Call `hook(model)` once the model is partitioned."""
        self._after_partition.append(hook)


def owner_of(parameter: nn.Parameter) -> int | None:
    """Return the pipeline rank a parameter lives on, None before the partition."""
    owner: int | None = getattr(parameter, OWNER_ATTRIBUTE, None)
    return owner
