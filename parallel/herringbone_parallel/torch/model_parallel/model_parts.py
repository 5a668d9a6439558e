"""The parts of a distributed model: what lives on this rank, and what the ranks of its tensor group share."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import local_parts, state
from herringbone_parallel.torch.model_parallel.hooks import OneTimeHooks
from herringbone_parallel.torch.model_parallel.placement.delayed import any_delayed
from herringbone_parallel.torch.model_parallel.runtime.microbatch import current
from herringbone_parallel.torch.model_parallel.tensor.distribute import SharedModel


class ModelParts(nn.Module):
    """Base class of `DistributedModel`: the methods that list parts of it."""

    module: nn.Module
    # None with `tensor_parallel_degree` 1, and until the model is partitioned.
    shared: SharedModel | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelParts:
        """Return a copy of the values, to average or to evaluate; the copy is partitioned together with this model.

        Raises `ParallelError` where replicas divide the parameters, and before delayed parameters have values.
        """
        if state.get().settings.sharded > 1:
            raise ParallelError(
                "copy.deepcopy of the model with sharded_data_parallel_degree, where this rank has a part of each"
                " parameter: copy model.state_dict(), which every rank must call"
            )
        if any_delayed(self.module):
            raise ParallelError(
                "copy.deepcopy of the model before its delayed parameters have values: run a step first"
            )
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in self.module.parameters():
                twin = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                # Its class, and the rank that has it.
                twin.__class__, twin.__dict__ = type(parameter), dict(parameter.__dict__)
                memo[id(parameter)] = twin
        other: Any = copy.copy(self)
        # Settings and process groups stay those of this model; hooks that are registered later do not.
        other.__dict__.update({name: dict(value) for name, value in self.__dict__.items() if type(value) is dict})
        other._after_partition, other._after_step = OneTimeHooks(), OneTimeHooks()
        other._modules["module"] = copy.deepcopy(self.module, memo)
        model: Any = self
        if not model.partitioned:
            model.register_post_partition_hook(lambda _: other._settle(model.assigned))
        return other  # type: ignore[no-any-return]

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that live on this rank, with their names in the wrapped module.

        Raises `ParallelError` inside a step, where the ranks must do the same.
        """
        if current() is not None:
            raise ParallelError(
                "model.local_parameters() inside a step, where each rank would compute with other parameters: take"
                " model.parameters() there"
            )
        return local_parts.named_parameters(self.module)

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that live on this rank."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers that this rank has, with their names."""
        return local_parts.named_buffers(self.module)

    def local_buffers(self) -> Iterator[torch.Tensor]:
        """Yield the buffers that this rank has."""
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules whose parameters and buffers are all on this rank, with their names."""
        return local_parts.named_modules(self.module)

    def local_modules(self) -> Iterator[nn.Module]:
        """Yield the modules whose parameters and buffers are all on this rank."""
        return (module for _, module in self.local_named_modules())

    @property
    def distributed_modules(self) -> list[nn.Module]:
        """The modules that the ranks of the tensor group share."""
        return [] if self.shared is None else [self.module.get_submodule(path) for path in self.shared.modules]

    def is_distributed_parameter(self, parameter: nn.Parameter) -> bool:
        """Say whether this rank has a part of the parameter, and the other ranks of the tensor group the rest."""
        return any(parameter is other for _, other in self.scaled_batch_reducer_named_parameters())

    def is_distributed_buffer(self, buffer: torch.Tensor) -> bool:  # noqa: ARG002  buffers are always whole
        """Say whether this rank has a part of the buffer."""
        return False

    def is_scaled_batch_parameter(self, parameter: nn.Parameter) -> bool:
        """Say whether the parameter is used on the batches of all ranks of the tensor group."""
        scaled = set() if self.shared is None else self.shared.scaled
        return any(parameter is other for name, other in self.local_named_parameters() if name in scaled)

    def is_scaled_batch_buffer(self, buffer: torch.Tensor) -> bool:
        """Say whether the buffer is used on the batches of all ranks of the tensor group."""
        regions = [] if self.shared is None or not self.shared.scaled else self.distributed_modules
        return any(buffer is other for region in regions for other in region.buffers())

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters whose gradients are averaged over all ranks with this partition (`DP_GROUP`)."""
        cuts = {} if self.shared is None else self.shared.cuts
        return ((name, parameter) for name, parameter in self.local_named_parameters() if name not in cuts)

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters whose gradients are averaged over the replicas of their part alone (`RDP_GROUP`)."""
        cuts = {} if self.shared is None else self.shared.cuts
        return ((name, parameter) for name, parameter in self.local_named_parameters() if name in cuts)

    def whole_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that every rank of the tensor group has as a whole."""
        return (parameter for _, parameter in self.default_reducer_named_parameters())
