"""`DistributedModel`: a module whose parts live on the ranks of the pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import local_parts, optimizer_state, state
from herringbone_parallel.torch.model_parallel.activation_checkpointing import serve_torch
from herringbone_parallel.torch.model_parallel.between_steps import guard_torch
from herringbone_parallel.torch.model_parallel.clipping import serve_torch_clipping
from herringbone_parallel.torch.model_parallel.hooks import Hook, OneTimeHooks
from herringbone_parallel.torch.model_parallel.model_parts import ModelParts
from herringbone_parallel.torch.model_parallel.optimizer_state import PARTIAL_KEY
from herringbone_parallel.torch.model_parallel.placement.delayed import any_delayed, make_values
from herringbone_parallel.torch.model_parallel.placement.partitioning import Tracing, agree
from herringbone_parallel.torch.model_parallel.placement.placement import assign_by_hand, settle
from herringbone_parallel.torch.model_parallel.placement.sequential import join_children
from herringbone_parallel.torch.model_parallel.precision import half
from herringbone_parallel.torch.model_parallel.replicas.model_replicas import ModelReplicas
from herringbone_parallel.torch.model_parallel.replicas.options import HookFunction, Uneven, parse_options
from herringbone_parallel.torch.model_parallel.replicas.reducer import Reducer
from herringbone_parallel.torch.model_parallel.runtime.bypasses import serve_bypasses
from herringbone_parallel.torch.model_parallel.runtime.microbatch import current
from herringbone_parallel.torch.model_parallel.shards.divide import divider, gathered, refuse_join
from herringbone_parallel.torch.model_parallel.shards.reducer import ShardedReducer
from herringbone_parallel.torch.model_parallel.shards.shards import Shards
from herringbone_parallel.torch.model_parallel.tensor.averaging import TensorReducer
from herringbone_parallel.torch.model_parallel.tensor.distribute import distribute
from herringbone_parallel.torch.model_parallel.tensor.marks import replace_registered
from herringbone_parallel.torch.model_parallel.tensor.whole import parts_of, whole_state
from herringbone_parallel.torch.step_hook import count_steps


class DistributedModel(ModelParts):
    """Wrap the model of a script. A script has one, and calls and differentiates it inside `@smp.step` only.

        model = smp.DistributedModel(Net())

    The module is partitioned at the first step (at once with one partition). Each rank then holds the parameters of its
    own part; those of other ranks are on the `meta` device. A parameter's first value is that of the rank that keeps
    it, so use the same seed on every rank if the values should be those of one process.

    `trace_device="cpu"` traces a model that does not fit one GPU on the CPU. With `trace_execution_times=True` the
    automatic partition measures times with the clock. Otherwise it estimates them from what operations compute and
    touch, the same in every run. The memory that backward keeps is always measured, whatever `trace_memory_usage` says.
    `average_grads_across_microbatches=False` sums instead.

    In the job's `fp16` and `bf16` the module's parameters and buffers become 16-bit numbers, except those of BatchNorm.
    Floating-point inputs are converted to 16 bits, and 16-bit outputs to float32.

    With replicas (`ddp`) the fields of `ReductionOptions` are arguments too. The gradients are averaged over the
    replicas when a step with a backward returns, and every replica starts from the first one's parameters. Without
    replicas such an argument gives a warning unless it has its default. An unknown argument raises `ParallelError`.
    Source: SMP v1, `smp.DistributedModel`.
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        *,
        average_grads_across_microbatches: bool = True,
        trace_memory_usage: bool = False,  # noqa: ARG002  SMP v1's argument; memory is measured in any case
        **others: Any,
    ) -> None:
        super().__init__()
        library = state.get()
        options = parse_options(others, replicated=library.replicas is not None)
        self._tracing = Tracing(device=trace_device, clock=trace_execution_times)
        if library.model is not None:
            raise ParallelError("a script has one DistributedModel; put several models in one module")
        if current() is not None:
            raise ParallelError("DistributedModel inside a step; make it before the first one")
        for path, inner in module.named_modules():
            if isinstance(inner, torch.jit.ScriptModule) and library.settings.partitions > 1:
                raise ParallelError(
                    f"module {path!r} is made by torch.jit, which keeps its parameters out of reach of the partition:"
                    " give smp.DistributedModel the module before it is scripted or traced"
                )
        if library.settings.delayed_parameter_initialization and not any_delayed(module):
            warnings.warn(
                "delayed_parameter_initialization has no effect: the model was made outside of smp.model_creation()",
                stacklevel=2,
            )
        self._tensor_reducer: TensorReducer | None = None
        if library.peers is not None:
            module = replace_registered(module)
        # The 16-bit type of the job's `fp16` or `bf16`; None in float32.
        self._half = half.half_type(library.settings.precision)
        if self._half is not None:
            half.convert(module, self._half)
        self.module = module
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self._replication = ModelReplicas(library.replicas, options, divider(library))
        # None until the model is partitioned.
        self._assigned: dict[str, int] | None = None
        self._gathered = False
        self._after_partition = OneTimeHooks()
        self._after_step = OneTimeHooks()
        library.model = self
        guard_torch()
        count_steps()
        if library.settings.partitions == 1:
            make_values(module)
            module.to(library.device)
            self._assigned = {}
            self._finish_partition()

    @property
    def partitioned(self) -> bool:
        """Say whether each parameter is on the rank of its partition."""
        return self._assigned is not None

    @property
    def assigned(self) -> dict[str, int]:
        """The partition of each module that has parameters or buffers of its own, by dotted path."""
        return dict(self._assigned or {})

    @property
    def reducer(self) -> Reducer | TensorReducer | None:
        """The reducer over replicas and the tensor group; None before the partition, and if there are neither."""
        return self._tensor_reducer or self._replication.reducer

    @property
    def shards(self) -> Shards | None:
        """The shards of the training state; None before the partition, and in a job that shards nothing."""
        reducer = self._replication.reducer
        return reducer.shards if isinstance(reducer, ShardedReducer) else None

    def settle(self, run: state.TrialRun) -> None:
        """Partition the model; a second call does nothing. `run` runs the step function, to measure the model."""
        if self._assigned is not None:
            return
        library = state.get()
        settings = library.settings
        if settings.auto_partition:
            assigned = agree(library, self.module, run, self._tracing)
        else:
            assigned = assign_by_hand(self.module, settings.partitions, settings.default_partition)
        # Values first: `settle` drops the tensors of other ranks, and a delayed parameter of this rank has no data yet.
        make_values(self.module, assigned, library.pp_rank)
        serve_bypasses()
        self._settle(assigned)
        self._finish_partition()

    def _settle(self, assigned: dict[str, int]) -> None:
        """Keep this rank's part of the model, or of a copy of it."""
        self._assigned = assigned
        settle(self.module, assigned, state.get().pp_rank, state.get().device)
        join_children(self.module)

    def _finish_partition(self) -> None:
        library = state.get()
        # With one partition, too: it offloads the inputs of checkpointed calls.
        serve_torch()
        if library.peers is not None:
            # Before the replicas copy and compare the parameters, of which this rank has parts from here on.
            self.shared = distribute(self.module, library.peers, same_batch=library.settings.prescaled_batch)
            serve_torch_clipping()
        # Before the hooks, so that the values of a state dict that a hook loads stay.
        self._replication.start(self)
        if self.shared is not None:
            self._tensor_reducer = TensorReducer(self.shared.peers, self.whole_parameters, self._replication.reducer)
        if self._assigned or self.shards is not None:
            serve_torch_clipping()
        self._after_partition.run(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped module, as part of the microbatch that the calling thread runs."""
        if current() is None:
            raise ParallelError("a distributed model runs inside a function decorated with @smp.step")
        if self._gathered:
            raise ParallelError("model.cpu() has ended the training of this model; call model.module outside of steps")
        if self._half is None:
            return self.module(*args, **kwargs)
        args, kwargs = half.narrowed((args, kwargs), self._half)
        return half.widened(self.module(*args, **kwargs), self._half)

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
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
        if grad_tensors is None:
            gradients = [None] * len(roots)
        if self.reducer is not None:
            self.reducer.expect()
        # One microbatch runs at a time, so no lock.
        state.get().backwards += 1
        microbatch.backward(roots, gradients, retain=retain_graph)
        if self._replication.reducer is not None:
            self._replication.reducer.backward_ended()

    def local_state_dict(self) -> dict[str, Any]:
        """Return the part of the state dict that lives on this rank, marked with `_smp_is_partial`.

        With sharded parameters, whole ones on the CPU; every rank that shares them must call.
        """
        with gathered(self.shards, "model.local_state_dict()") as copied:
            local = local_parts.tie(copied(local_parts.with_data(local_parts.state_dict(self.module))), self.module)
        return {**local, PARTIAL_KEY: state.get().settings.partitions > 1 or self.shared is not None}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # torch's overloads, passed on
        """Return the whole state dict, on the CPU, gathered from the model-parallel group, all of which must call.

        With sharded parameters, every rank of the job must call.
        """
        if not self.partitioned and any_delayed(self.module):
            raise ParallelError(
                "state_dict() before the first step: made inside smp.delay_param_initialization, the parameters have no"
                " values yet. Run a step first"
            )
        with gathered(self.shards, "model.state_dict()") as copied:
            state_dict = copied(local_parts.state_dict(self.module, *args, **kwargs))
        library = state.get()
        if self.shared is not None:
            state_dict = type(state_dict)(whole_state(state_dict, self.shared))
        if library.settings.partitions > 1 and self.partitioned:
            local = optimizer_state.on_cpu(local_parts.with_data(state_dict))
            parts: list[Any] = [None] * library.settings.partitions
            dist.all_gather_object(parts, local, group=library.groups[CommGroup.PP_GROUP])
            # A buffer of code that runs on every rank is in several parts; the first rank's counts.
            merged = {name: tensor for part in reversed(parts) for name, tensor in part.items()}
            state_dict = {name: merged[name] for name in state_dict}
        return local_parts.tie(state_dict, self.module, kwargs.get("prefix", ""))

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a whole state dict, of which each rank takes its own part, or this rank's `local_state_dict`.

        Raises `ParallelError` when `strict` and the names are not those of the model, or of this rank's part of it.
        """
        loaded = {name: value for name, value in state_dict.items() if name != PARTIAL_KEY}
        if not self.partitioned and (state_dict.get(PARTIAL_KEY) or any_delayed(self.module)):
            # Nobody knows yet which part belongs to this rank, or where the values are to go.
            self.register_post_partition_hook(lambda _: self.load_state_dict(state_dict, strict, assign))
            return None
        if self.shared is not None:
            loaded = parts_of(loaded, self.shared)
        if self.shards is not None and assign:
            raise ParallelError("load_state_dict(assign=True) of sharded parameters: leave assign out")
        with gathered(self.shards, "model.load_state_dict()"):
            return self._load(state_dict, loaded, strict, assign)

    def _load(self, state_dict: Any, loaded: dict[str, Any], strict: bool, assign: bool) -> Any:
        if not self.partitioned or state.get().settings.partitions == 1:
            return self.module.load_state_dict(loaded, strict=strict, assign=assign)
        whole = local_parts.state_dict(self.module)
        local = local_parts.with_data(whole)
        expected = set(local) if state_dict.get(PARTIAL_KEY) else set(whole)
        if strict and expected != set(loaded):
            raise ParallelError(
                f"the state dict is of another model: missing {sorted(expected - set(loaded))[:5]},"
                f" unexpected {sorted(set(loaded) - expected)[:5]}"
            )
        local_entries = {name: loaded[name] for name in local if name in loaded}
        # Not strict: the names of other ranks' tensors are missing, and all names were checked above.
        return self.module.load_state_dict(local_entries, strict=False, assign=assign)

    def register_post_partition_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(model)` once the model is partitioned, at once if it is; `remove()` of the handle cancels it.

            model.register_post_partition_hook(lambda model, optimizer: print(optimizer.param_groups))

        A hook of two arguments gets the script's `DistributedOptimizer` as well, None before there is one.
        """
        handle = self._after_partition.register(hook)
        if self.partitioned:
            self._after_partition.run(self)
        return handle

    def register_post_step_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(model, optimizer)`, or `hook(model)`, once: when the next call of a step function returns.

            model.register_post_step_hook(lambda model, optimizer: optimizer.load_state_dict(saved))

        The gradients of that step are there, and `optimizer.step()` has not run yet. `remove()` of the handle cancels
        the hook. Source: the scripts of AWS's later examples.
        """
        return self._after_step.register(hook)

    def end_step(self) -> None:
        """Call the hooks that wait for the end of a step; `smp.step` calls this."""
        self._after_step.run(self)

    def get_module(self) -> nn.Module:
        """Return the wrapped module, as `model.module` does; the name of AWS's later examples."""
        return self.module

    def cpu(self) -> DistributedModel:
        """Gather the whole model on the CPU of every rank of the pipeline, to export it; each of them must call.

            smp_model.cpu()
            if smp.rank() == 0:
                smp_model.module.save_pretrained(folder)

        The model cannot be trained afterwards.
        """
        local_parts.fill_with(self.module, self.state_dict())
        if self.shards is not None:
            self.shards.retire()
        if self.shared is not None and self.shared.modules:
            self.module.register_forward_pre_hook(_refuse_exported)
        self._gathered = True
        return self

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let replicas make unequal numbers of steps inside the `with` block; they wait for each other at its end.

            with model.join():
                for images, labels in loader:           # longer on one replica than on another
                    ...

        At the end every replica takes model and optimizers from one that made the last step. Gradients are divided by
        the number of all replicas, or, without `divide_by_initial_world_size`, of those that have batches left. With
        `throw_on_early_termination` the first replica that ends makes all raise `ParallelError`. Do not call other
        collectives of all replicas inside, as `GradScaler` does: they would wait for a replica that has ended.
        Arguments are those of torch's DistributedDataParallel; with `enable=False` this does nothing. Raises
        `ParallelError` without replicas, and on a replica that makes no step at all.
        """
        if not enable:
            yield
            return
        library = state.get()
        refuse_join(library)
        if library.peers is not None and not library.settings.prescaled_batch:
            raise ParallelError(
                "model.join() with tensor_parallel_degree: the ranks of a tensor group compute on all their batches"
                " together, and would wait for one that has ended. Set prescaled_batch, or give every rank as many"
                " batches"
            )
        if library.loss_scale is not None:
            raise ParallelError(
                "model.join() with a loss scale: all ranks look for infinite gradients together, and would wait for a"
                " replica that has ended. Train in bf16 or fp32, or give every replica as many batches"
            )
        uneven = Uneven(not divide_by_initial_world_size, throw_on_early_termination)
        with self._replication.join(self, library.optimizers, uneven):
            yield

    def check_reduced(self) -> None:
        """Raise `ParallelError` while gradients wait for the rest of `backward_passes_per_step`."""
        if self._replication.reducer is not None:
            self._replication.reducer.check_reduced()

    def register_comm_hook(self, state: Any, hook: HookFunction) -> None:
        """Let `hook(state, bucket)` average the gradients over the replicas; it returns a future, as torch's hooks do.

            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(smp.get_dp_process_group(), default_hooks.fp16_compress_hook)

        `bucket` has the methods of `torch.distributed.GradBucket`. Without a `state`, torch's own hooks communicate
        with all ranks of the job, also with those of other partitions, whose buckets differ: that raises
        `ParallelError`. Every rank must call it, before or after the model is partitioned.
        """
        self._replication.register_hook(state, hook)


def _refuse_exported(_module: nn.Module, _args: object) -> None:
    raise ParallelError(
        "model.cpu() of layers that a tensor group shares: their code still waits for the other ranks. Save the module,"
        " and load it into a new one to call it"
    )
