"""`DistributedModel`: a module whose parts live on the ranks of the pipeline."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import optimizer_state, state
from herringbone_parallel.torch.model_parallel.optimizer_state import PARTIAL_KEY
from herringbone_parallel.torch.model_parallel.placement.delayed import any_delayed, make_values
from herringbone_parallel.torch.model_parallel.placement.partitioning import Run, Tracing, agree
from herringbone_parallel.torch.model_parallel.placement.placement import assign_by_hand, settle
from herringbone_parallel.torch.model_parallel.placement.sequential import join_children
from herringbone_parallel.torch.model_parallel.replicas.reducer import Hook, Reducer, ReductionOptions, Uneven
from herringbone_parallel.torch.model_parallel.replicas.replicas import Replicas
from herringbone_parallel.torch.model_parallel.runtime.activation_checkpointing import serve_torch
from herringbone_parallel.torch.model_parallel.runtime.microbatch import current

# SMP v1's other arguments, with their defaults.
_OF_REPLICAS = {option.name: option.default for option in fields(ReductionOptions)}
_TORCHS_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"


class DistributedModel(nn.Module):
    """Wrap the model of a script; the only one, called and differentiated inside `@smp.step` only.

        model = smp.DistributedModel(Net())

    The module is partitioned at the first step (at once with one partition): each rank then holds the parameters of its
    own part, and elsewhere they are on the `meta` device. Initialise from the same seed on every rank, or do not mind:
    a parameter's first value is that of the rank that keeps it.

    `trace_device="cpu"` traces a model that does not fit one GPU on the CPU. With `trace_execution_times=True` the
    automatic partition goes by the clock; otherwise by what operations compute and touch, the same in every run. What
    backward keeps is measured whatever `trace_memory_usage` says; SMP v1 guesses it unless told.
    `average_grads_across_microbatches=False` sums instead. With replicas (`ddp`) the fields of `ReductionOptions` are
    arguments too: the gradients are averaged over the replicas when a step with a backward returns, and every replica
    starts from the first one's parameters. Without replicas one of them gives a warning unless it is at its default. An
    unknown argument raises `ParallelError`. Source: SMP v1, `smp.DistributedModel`.
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        *,
        average_grads_across_microbatches: bool = True,
        trace_memory_usage: bool = False,  # noqa: ARG002  SMP v1's; measured in any case
        **others: Any,
    ) -> None:
        super().__init__()
        here = state.get()
        options = _options(others, replicated=here.replicas is not None)
        self._tracing = Tracing(device=trace_device, clock=trace_execution_times)
        if here.model is not None:
            raise ParallelError("a script has one DistributedModel; put several models in one module")
        if current() is not None:
            raise ParallelError("DistributedModel inside a step; make it before the first one")
        if here.settings.delayed_parameter_initialization and not any_delayed(module):
            warnings.warn(
                "delayed_parameter_initialization has no effect: the model was made outside of smp.model_creation()",
                stacklevel=2,
            )
        self.module = module
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self._assigned: dict[str, int] | None = None
        self._gathered = False
        self._replicas = here.replicas
        self._options = options
        self._comm_hook: tuple[Any, Hook] | None = None
        self._uneven: Uneven | None = None
        self.reducer: Reducer | None = None
        self._after_partition: OrderedDict[int, Callable[[DistributedModel], Any]] = OrderedDict()
        here.model = self
        if here.settings.partitions == 1:
            make_values(module)
            module.to(here.device)
            self._settled({})

    @property
    def partitioned(self) -> bool:
        """Say whether the parameters are where they belong."""
        return self._assigned is not None

    @property
    def assigned(self) -> dict[str, int]:
        """The partition of each module that has parameters or buffers of its own, by dotted path."""
        return dict(self._assigned or {})

    def settle(self, run: Run) -> None:
        """Partition the model; a second call does nothing. `run` runs the step function, to measure the model."""
        if self._assigned is not None:
            return
        here = state.get()
        settings = here.settings
        if settings.auto_partition:
            assigned = agree(here, self.module, run, self._tracing)
        else:
            assigned = assign_by_hand(self.module, settings.partitions, settings.default_partition)
        make_values(self.module, assigned, here.pp_rank)
        settle(self.module, assigned, here.pp_rank, here.device)
        join_children(self.module)
        serve_torch()
        self._settled(assigned)

    def _settled(self, assigned: dict[str, int]) -> None:
        self._assigned = assigned
        here = state.get()
        if here.replicas is not None:
            self._join_replicas(here.replicas)
        while self._after_partition:
            _, hook = self._after_partition.popitem(last=False)
            hook(self)

    def _join_replicas(self, replicas: Replicas) -> None:
        # Here the parameters are compared, so what follows sends the same from each replica.
        self.reducer = Reducer(replicas, self.local_named_parameters, self._options, self._comm_hook)
        self.reducer.uneven = self._uneven
        buffers = list(self.local_buffers()) if self._options.broadcast_buffers else []
        replicas.take_after(0, [tensor.detach() for tensor in (*self.local_parameters(), *buffers)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if current() is None:
            raise ParallelError("a distributed model runs inside a function decorated with @smp.step")
        if self._gathered:
            raise ParallelError("model.cpu() has ended the training of this model; call model.module outside of steps")
        return self.module(*args, **kwargs)

    def backward(
        self, tensors: torch.Tensor | Sequence[torch.Tensor], grad_tensors: Any = None, *, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of all parameters, each on its own rank; replaces `loss.backward()` inside a step.

        model.backward(loss, retain_graph=True)    # then another loss of the same forward may follow
        """
        microbatch = current()
        if microbatch is None:
            raise ParallelError("model.backward() belongs inside a function decorated with @smp.step")
        if state.get().settings.pipeline == "_only_forward":
            raise ParallelError(
                "model.backward() under pipeline '_only_forward', which runs forwards alone: leave the call out, or set"
                " `pipeline` to interleaved, simple or zero_bubble"
            )
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
        if grad_tensors is None:
            gradients = [None] * len(several)
        if self.reducer is not None:
            self.reducer.expect()
        microbatch.backward(several, gradients, retain=retain_graph)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield all parameters with their names; in a step, those that live on one rank as tensors that are there.

        loss = loss + 1e-4 * sum(parameter.square().sum() for parameter in model.parameters())
        """
        microbatch = current()
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name, parameter if microbatch is None else microbatch.place_parameter(parameter)

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that live on this rank, with their names in the wrapped module."""
        for name, parameter in self.module.named_parameters():
            if not parameter.is_meta:
                yield name, parameter

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that live on this rank."""
        for _, parameter in self.local_named_parameters():
            yield parameter

    def local_named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers that this rank has, with their names."""
        for name, buffer in self.module.named_buffers():
            if not buffer.is_meta:
                yield name, buffer

    def local_buffers(self) -> Iterator[torch.Tensor]:
        """Yield the buffers that this rank has."""
        for _, buffer in self.local_named_buffers():
            yield buffer

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules whose parameters and buffers are all on this rank, with their names."""
        for name, module in self.module.named_modules():
            if not any(tensor.is_meta for tensor in itertools.chain(module.parameters(), module.buffers())):
                yield name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """Yield the modules whose parameters and buffers are all on this rank."""
        for _, module in self.local_named_modules():
            yield module

    def local_state_dict(self) -> dict[str, Any]:
        """Return the part of the state dict that lives on this rank, marked with `_smp_is_partial`."""
        return {**_present(self.module.state_dict()), PARTIAL_KEY: state.get().settings.partitions > 1}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # torch's overloads, passed on
        """Return the whole state dict, on the CPU, gathered from the pipeline; every one of its ranks must call it."""
        if not self.partitioned and any_delayed(self.module):
            raise ParallelError(
                "state_dict() before the first step: made inside smp.delay_param_initialization, the parameters have no"
                " values yet. Run a step first"
            )
        own = self.module.state_dict(*args, **kwargs)
        here = state.get()
        if here.settings.partitions == 1 or not self.partitioned:
            return own
        local = optimizer_state.on_cpu(_present(own))
        parts: list[Any] = [None] * here.settings.partitions
        dist.all_gather_object(parts, local, group=here.groups[CommGroup.PP_GROUP])
        merged = {name: tensor for part in reversed(parts) for name, tensor in part.items()}
        return {name: merged[name] for name in own}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a whole state dict, of which each rank takes what lives on it, or what `local_state_dict` returned here.

        Raises `ParallelError` when `strict` and the names are not those of the model, or of this rank's part of it.
        """
        given = {name: value for name, value in state_dict.items() if name != PARTIAL_KEY}
        if not self.partitioned and (state_dict.get(PARTIAL_KEY) or any_delayed(self.module)):
            self.register_post_partition_hook(lambda _: self.load_state_dict(state_dict, strict, assign))
            return None
        if not self.partitioned or state.get().settings.partitions == 1:
            return self.module.load_state_dict(given, strict=strict, assign=assign)
        local = _present(self.module.state_dict())
        expected = set(local) if state_dict.get(PARTIAL_KEY) else set(self.module.state_dict())
        if strict and expected != set(given):
            raise ParallelError(
                f"the state dict is of another model: missing {sorted(expected - set(given))[:5]},"
                f" unexpected {sorted(set(given) - expected)[:5]}"
            )
        mine = {name: given[name] for name in local if name in given}
        return self.module.load_state_dict(mine, strict=False, assign=assign)

    def register_post_partition_hook(self, hook: Callable[[DistributedModel], Any]) -> RemovableHandle:
        """Call `hook(model)` once the model is partitioned, at once if it is; the handle's `remove()` takes it back."""
        handle = RemovableHandle(self._after_partition)
        if self.partitioned:
            hook(self)
        else:
            self._after_partition[handle.id] = hook
        return handle

    def cpu(self) -> DistributedModel:
        """Gather the whole model on the CPU of every rank of the pipeline, to export it; each of them must call it.

            smp_model.cpu()
            if smp.rank() == 0:
                smp_model.module.save_pretrained(folder)

        The model cannot be trained afterwards.
        """
        whole = self.state_dict()
        made: dict[int, nn.Parameter] = {}
        for path, module in self.module.named_modules():
            prefix = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        made[id(parameter)] = nn.Parameter(whole[prefix + name].cpu(), parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None and prefix + name in whole:
                    module._buffers[name] = whole[prefix + name].cpu()
        self._gathered = True
        return self

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let replicas make unequal numbers of steps inside; one that has ended waits for the others at the end.

            with model.join():
                for images, labels in loader:           # longer on one replica than on another
                    ...

        At the end every replica takes model and optimizers from one that made the last step. Gradients are divided by
        the number of all replicas, or, without `divide_by_initial_world_size`, of those that have batches left. With
        `throw_on_early_termination` the first that ends ends all, by a `ParallelError`. Other collectives of all
        replicas inside, as `GradScaler`'s, would wait for one that has ended. Arguments are those of torch's
        DistributedDataParallel. Raises `ParallelError` without replicas, and for one that makes no step at all.
        """
        if self._replicas is None:
            raise ParallelError("model.join() is for replicas of the pipeline (ddp), which this job has not")
        self._uneven = Uneven(not divide_by_initial_world_size, throw_on_early_termination) if enable else None
        if self.reducer is not None:
            self.reducer.uneven = self._uneven
        try:
            yield
            if enable:
                self._leave_together(self._replicas)
        finally:
            self._uneven = None
            if self.reducer is not None:
                self.reducer.uneven = None

    def _leave_together(self, replicas: Replicas) -> None:
        if self.reducer is None:
            raise ParallelError("model.join() without a step inside or before: the model is not partitioned yet")
        self.reducer.accompany()
        source = self.reducer.active[0]
        tensors = [tensor.detach() for tensor in (*self.local_parameters(), *self.local_buffers())]
        replicas.take_after(source, tensors)
        for optimizer in state.get().optimizers:
            content = optimizer_state.on_cpu(optimizer.optimizer.state_dict()) if replicas.index == source else None
            optimizer.optimizer.load_state_dict(replicas.object_of(source, content))

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let `hook(state, bucket)` average the gradients over the replicas; it returns a future, as torch's hooks do.

            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(smp.get_dp_process_group(), default_hooks.fp16_compress_hook)

        `bucket` has the methods of `torch.distributed.GradBucket`. Torch's own hooks talk to all ranks of the job when
        `state` is None, also to those of other partitions, whose buckets are others: that raises `ParallelError`.
        May be called before or after the model is partitioned, by every rank.
        """
        if self._replicas is None:
            raise ParallelError(
                "model.register_comm_hook() is for replicas of the pipeline (ddp), which this job has not"
            )
        if state is None and self._replicas.in_several_partitions and hook.__module__.startswith(_TORCHS_HOOKS):
            raise ParallelError(
                f"model.register_comm_hook(None, {hook.__qualname__}): without a process group this hook would mix the"
                " gradients of all partitions; pass smp.get_dp_process_group() as its state"
            )
        if self._comm_hook is not None:
            raise ParallelError("register_comm_hook was called before; a model has one communication hook")
        self._comm_hook = (state, hook)
        if self.reducer is not None:
            self.reducer.hook = self._comm_hook


def _present(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a state dict has data on this rank."""
    return {name: value for name, value in state_dict.items() if not (torch.is_tensor(value) and value.is_meta)}


def _options(others: Mapping[str, Any], *, replicated: bool) -> ReductionOptions:
    """Return the arguments about replicas, and warn of those that change nothing because there are none."""
    for name, value in others.items():
        if name not in _OF_REPLICAS:
            raise ParallelError(
                f"smp.DistributedModel has no argument {name!r}; there are trace_device, trace_execution_times,"
                f" trace_memory_usage, average_grads_across_microbatches, {', '.join(_OF_REPLICAS)}"
            )
        if not replicated and value != _OF_REPLICAS[name]:
            warnings.warn(
                f"smp.DistributedModel({name}={value!r}) has no effect: it concerns replicas of the pipeline, and this"
                " job has none",
                stacklevel=3,
            )
    return ReductionOptions(**others)
