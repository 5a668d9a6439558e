"""The replicas of one model: the reducer once the model is partitioned, its hook, and `model.join`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import optimizer_state
from herringbone_parallel.torch.model_parallel.replicas.options import (
    CommHook,
    HookFunction,
    ReductionOptions,
    Uneven,
)
from herringbone_parallel.torch.model_parallel.replicas.reducer import NamedParameters, Peers, Reducer
from herringbone_parallel.torch.model_parallel.replicas.replicas import Replicas

_TORCH_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"


class LocalModel(Protocol):
    """The part of `DistributedModel` that replicas copy and average."""

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def local_parameters(self) -> Iterator[nn.Parameter]: ...
    def local_buffers(self) -> Iterator[torch.Tensor]: ...


class Wrapper(Protocol):
    """The part of `DistributedOptimizer` that `leave_together` copies."""

    optimizer: torch.optim.Optimizer


class ModelReplicas:
    """Connects a model with its replicas; in a job without replicas, refuses what needs them.

        replication = ModelReplicas(library.replicas, options)
        replication.start(model)                # once, when the model is partitioned

    `reducer` is None until `start`, and in a job without replicas. `divide` makes the reducer of a model whose
    parameters the replicas divide; None keeps it whole on each replica.
    """

    def __init__(
        self,
        replicas: Replicas | None,
        options: ReductionOptions,
        divide: Callable[[Peers, NamedParameters, ReductionOptions], Reducer] | None = None,
    ) -> None:
        self._replicas = replicas
        self._divide = divide
        self._options = options
        # Both may be set before there is a reducer, so they are kept here and handed to it.
        self._comm_hook: CommHook | None = None
        self._uneven: Uneven | None = None
        self.reducer: Reducer | None = None

    def start(self, model: LocalModel) -> None:
        """Take the first replica's parameters and buffers, and average gradients from now on."""
        if self._replicas is None:
            return
        # Before the copies below, which must match on all replicas.
        if self._divide is None:
            self.reducer = Reducer(self._replicas, model.local_named_parameters, self._options, self._comm_hook)
        else:
            self.reducer = self._divide(self._replicas, model.local_named_parameters, self._options)
        self.reducer.uneven = self._uneven
        buffers = list(model.local_buffers()) if self._options.broadcast_buffers else []
        self._replicas.take_after(0, [tensor.detach() for tensor in (*model.local_parameters(), *buffers)])

    @contextmanager
    def join(self, model: LocalModel, optimizers: Sequence[Wrapper], uneven: Uneven) -> Iterator[None]:
        """Let replicas make unequal numbers of steps inside the `with` block; they leave it together and equal."""
        if self._replicas is None:
            raise ParallelError("model.join() is for replicas of the pipeline (ddp), which this job has not")
        self._set_uneven(uneven)
        try:
            yield
            self._leave_together(self._replicas, model, optimizers)
        finally:
            self._set_uneven(None)

    def register_hook(self, state: Any, function: HookFunction) -> None:
        """Let `function(state, bucket)` average the gradients; raises `ParallelError` for a hook that cannot work."""
        if self._replicas is None:
            raise ParallelError(
                "model.register_comm_hook() is for replicas of the pipeline (ddp), which this job has not"
            )
        if self._divide is not None:
            raise ParallelError(
                "model.register_comm_hook() with sharded_data_parallel_degree: the gradients of shards are scattered,"
                " and a communication hook averages whole ones. Leave one of the two out"
            )
        if state is None and self._replicas.in_several_partitions and function.__module__.startswith(_TORCH_HOOKS):
            raise ParallelError(
                f"model.register_comm_hook(None, {function.__qualname__}): without a process group this hook would mix"
                " the gradients of all partitions; pass smp.get_dp_process_group() as its state"
            )
        if self._comm_hook is not None:
            raise ParallelError("register_comm_hook was called before; a model has one communication hook")
        self._comm_hook = CommHook(state, function)
        if self.reducer is not None:
            self.reducer.hook = self._comm_hook

    def _set_uneven(self, uneven: Uneven | None) -> None:
        self._uneven = uneven
        if self.reducer is not None:
            self.reducer.uneven = uneven

    def _leave_together(self, replicas: Replicas, model: LocalModel, optimizers: Sequence[Wrapper]) -> None:
        """Wait for the replicas that have batches left, then take model and optimizers from one of the last."""
        if self.reducer is None:
            raise ParallelError("model.join() without a step inside or before: the model is not partitioned yet")
        self.reducer.accompany()
        source = self.reducer.active[0]
        own = {id(parameter): parameter for parameter in model.local_parameters()}
        groups = [group for wrapper in optimizers for group in wrapper.optimizer.param_groups]
        # Copies in float32 that an optimizer updates instead of the parameters.
        copies = [p for group in groups for p in group["params"] if id(p) not in own]
        tensors = [tensor.detach() for tensor in (*own.values(), *model.local_buffers(), *copies)]
        replicas.take_after(source, tensors)
        for wrapper in optimizers:
            content = optimizer_state.on_cpu(wrapper.optimizer.state_dict()) if replicas.index == source else None
            wrapper.optimizer.load_state_dict(replicas.object_of(source, content))
