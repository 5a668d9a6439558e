"""`transform` splits a model's layers and sequences, and `shard` splits its training state, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding import state as states
from herringbone_parallel.torch.sharding.activations import checkpoint_blocks, offload
from herringbone_parallel.torch.sharding.delayed_param import DelayedParamIniter
from herringbone_parallel.torch.sharding.parameters import refusals, second_derivatives
from herringbone_parallel.torch.sharding.parameters import tensors as shared_tensors
from herringbone_parallel.torch.sharding.parameters.tensors import GradientHooks, own_parameters
from herringbone_parallel.torch.sharding.placement import shard_dimension
from herringbone_parallel.torch.sharding.state import State
from herringbone_parallel.torch.sharding.units import shares_parameters, units

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

CP_COMM_TYPES = ("p2p", "all_gather")
# These take an input of their weight's type only. A class of the script's may widen the weight itself.
_OF_ONE_TYPE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm)


def transform(
    model: nn.Module,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    config: Mapping[str, Any] | None = None,
    load_state_dict_from_rank0: bool = False,
    cp_comm_type: str = "p2p",
    *,
    plan: Mapping[str, str] | None = None,
) -> nn.Module:
    """Split the layers of a model over the tensor-parallel ranks, and its sequences over the context-parallel ranks.

        model = tsm.transform(model, load_state_dict_from_rank0=True)
        model = FullyShardedDataParallel(model, use_orig_params=True)

    Returns the same module, changed in place; `shard` does this and splits the training state, too. `plan` says how to
    split each layer (`{"layers.*.fc1": "colwise"}`) where neither the model nor Herringbone knows. With
    `load_state_dict_from_rank0` every rank gets rank 0's values. Parameters on the meta device stay there, and
    `sync_module_states` of `FullyShardedDataParallel` fills them; only ranks of rank 0's tensor group get values, of
    which they keep their parts. `device` and `dtype` move the model
    first.

    Raises `ParallelError` for a `config` (FP8 and mixtures of experts are not there), a `cp_comm_type` other than p2p
    and all_gather, and a model whose layers cannot be split.
    """
    state = states.get()
    _refuse_config(config)
    if cp_comm_type not in CP_COMM_TYPES:
        raise ParallelError(f"cp_comm_type is {' or '.join(CP_COMM_TYPES)}, not {cp_comm_type!r}")
    if device is not None or dtype is not None:
        on_meta = any(parameter.is_meta for parameter in model.parameters())
        model.to(device=None if on_meta else device, dtype=dtype)
    if load_state_dict_from_rank0:
        # The ranks that share layers with rank 0 need its values to split them.
        copy_from_rank0(model, state.device, make=0 in state.mesh.grid.group("T", state.mesh.rank))
    if state.mesh.tensor is not None:
        from herringbone_parallel.torch.tensor_parallel.parallelize import parallelize

        model = parallelize(model, state.mesh.tensor, plan)
    if state.mesh.context is not None:
        from herringbone_parallel.torch.context_parallel.enable import enable

        model = enable(model, state.mesh.context, comm=cp_comm_type)
    state.transformed.add(model)
    state.layers.update(units(model).values())
    return model


def shard(
    model: nn.Module,
    *,
    blocks: Iterable[type[nn.Module]] | None = None,
    mixed_precision: torch.dtype | MixedPrecisionPolicy | None = None,
    reshard_after_forward: bool | int | None = None,
    checkpoint_activations: bool | None = None,
    plan: Mapping[str, str] | None = None,
    copy_initial_values: bool = True,
) -> nn.Module:
    """Split a model's training state over the ranks, with everything that the job's `distribution` asks for.

        from herringbone_parallel.torch import sharding     # or torch.sagemaker
        sharding.init()
        model = sharding.shard(model)
        optimizer = torch.optim.AdamW(model.parameters())

    Returns the same module, changed in place, with parameters that are `DTensor`s on the rank's device. Make the
    optimizer afterwards. It calls `transform` if the script has not. `blocks` are the classes of the modules whose
    parameters are gathered together; by default these are the members of the model's lists (`units.units`).
    `mixed_precision` is the type of parameters in computations; gradients are then averaged in fp32. BatchNorm computes
    in the type of its running statistics.
    `reshard_after_forward` frees gathered parameters after the forward pass; by default all but the root's.
    `checkpoint_activations` recomputes each block's activations in the backward pass; by default only if the job
    offloads them. `copy_initial_values` gives all ranks rank 0's values first, also for their
    parameters on the meta device. Parameters that rank 0 has there, too, are made block by block, from the job's
    `random_seed`.

    Raises `ParallelError` before `init`, for a `plan` after `transform`, and for a trained parameter without elements.
    """
    from torch.distributed.fsdp import fully_shard

    state = states.get()
    if inspect.signature(fully_shard).parameters["reshard_after_forward"].default is not None:
        raise ParallelError(
            f"shard needs torch 2.13 or newer, and this rank has torch {torch.__version__}: name one in the job's"
            " requirements.txt, or give FullyShardedDataParallel the model that transform returns"
        )
    if empty := [name for name, value in model.named_parameters() if value.requires_grad and not value.numel()]:
        raise ParallelError(
            f"the parameter {empty[0]} has no elements, and torch cannot average a gradient without elements over the"
            " ranks. Remove it from the model, or freeze it: requires_grad_(False)"
        )
    if copy_initial_values:
        copy_from_rank0(model, state.device, make=True)
    if model not in state.transformed:
        model = transform(model, plan=plan)
    elif plan is not None:
        raise ParallelError("shard(plan=...): `transform` has split this model's layers already. Give the plan to it")
    blocks_by_name = units(model, blocks)
    if checkpoint_activations is None:
        checkpoint_activations = state.settings.sm_activation_offloading
    if checkpoint_activations:
        blocks_by_name = checkpoint_blocks(model, blocks_by_name)
        if state.settings.sm_activation_offloading:
            offload(model, state.settings.activation_loading_horizon, state.device)
    options: dict[str, Any] = {
        "mesh": state.mesh.shards,
        "reshard_after_forward": reshard_after_forward,
        "shard_placement_fn": _placement(state),
    }
    tensors = (*model.parameters(), *model.buffers())
    initer = DelayedParamIniter(model) if any(tensor.is_meta for tensor in tensors) else None
    policy = _policy(mixed_precision)
    norms = _norms(model, policy)
    if policy.param_dtype is not None and policy.cast_forward_inputs:
        # torch casts the inputs of units; a buffer, or a table that `forward` makes, widens what layers inside get.
        for module in model.modules():
            if type(module) in _OF_ONE_TYPE and module.weight is not None:
                module.register_forward_pre_hook(_narrow)

    def split(unit: nn.Module) -> None:
        if initer is not None:
            # Here and not before, so that a rank holds one whole block at a time.
            initer.make(unit)
        fully_shard(unit, **options, mp_policy=norms.get(unit, policy))

    # From the inside out: a block inside another one is its own unit, and the outer one takes what is left.
    _split_all(model, tuple(dict.fromkeys((*norms, *reversed(blocks_by_name.values()), model))), split)
    return model


def _split_all(model: nn.Module, parts: Iterable[nn.Module], split: Callable[[nn.Module], None]) -> None:
    """Split the parameters of these modules in turn, and serve or refuse what a script does with them afterwards."""
    order = states.get().call_order()
    names, kind = {module: name for name, module in model.named_modules()}, type(model).__name__
    shared_tensors.serve()
    refusals.watch_optimizers()
    for unit in parts:
        own = own_parameters(unit)
        split(unit)
        order.watch(unit, f"{names[unit]} of {kind}" if names[unit] else kind)
        for module, name, parameter in own:
            GradientHooks(unit, module, name, parameter)
        refusals.explain(unit)
    shared_tensors.take_whole_states(model)
    second_derivatives.serve(model)


def copy_from_rank0(model: nn.Module, device: torch.device, *, make: bool = False) -> None:
    """Give all ranks rank 0's parameters and buffers; this rank's on the meta device stay there, unless `make`.

    Raises `ParallelError` on all ranks if one has other tensors than rank 0: other names, shapes or types.
    """
    ours = dict((*model.named_parameters(), *model.named_buffers()))
    described = [[(name, _kind(tensor), tensor.is_meta) for name, tensor in ours.items()]]
    dist.broadcast_object_list(described, device=device)
    theirs = {name: kind for name, kind, _ in described[0]}
    _agree_on_names({name: _kind(tensor) for name, tensor in ours.items()}, theirs)
    from torch.distributed.tensor import DTensor, distribute_tensor

    if make:
        _make(model, [ours[name] for name, _, on_meta in described[0] if not on_meta and ours[name].is_meta], device)
        ours = dict((*model.named_parameters(), *model.named_buffers()))
    with torch.no_grad():
        for name, _, on_meta in described[0]:
            if on_meta:
                continue
            tensor = ours[name]
            # One at a time: a second copy of the whole model may not fit the device.
            values = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if not tensor.is_meta:
                # Of a layer that ranks share, which `transform` has split: the whole.
                values.copy_(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)
            dist.broadcast(values, 0)
            if isinstance(tensor, DTensor) and not tensor.is_meta:
                tensor.copy_(distribute_tensor(values, tensor.device_mesh, tensor.placements))
            elif not tensor.is_meta:
                tensor.copy_(values)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _agree_on_names(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Raise `ParallelError` on all ranks if the tensors of one, by name, are others than rank 0's (`theirs`)."""
    difference = ""
    if lone := sorted(ours.keys() ^ theirs.keys()):
        difference = f"{', '.join(lone[:5])} is in one of them only"
    elif other := [name for name in theirs if ours[name] != theirs[name]]:
        difference = f"{other[0]} is {ours[other[0]]} there, and {theirs[other[0]]} on rank 0"
    elif list(ours) != list(theirs):
        difference = "it has the same tensors in another order"
    differences: list[Any] = [None] * dist.get_world_size()
    # Before the first value travels: a rank that raised alone would leave the others waiting.
    dist.all_gather_object(differences, difference)
    for rank, text in enumerate(differences):
        if text:
            raise ParallelError(f"the model of rank {rank} differs from rank 0's: {text}")


def _make(model: nn.Module, on_meta: Iterable[torch.Tensor], device: torch.device) -> None:
    """Replace these tensors of a model by empty ones on the device; a tied one stays tied."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for tensor in on_meta:
        empty = torch.empty_like(tensor, device=device)
        made[tensor] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    for module in model.modules():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in stores:
            # `setattr` is not for tensor-parallel modules, which read their attributes as local parts.
            tensors.update({name: made[tensor] for name, tensor in tensors.items() if tensor in made})


def _policy(mixed_precision: Any) -> MixedPrecisionPolicy:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if isinstance(mixed_precision, torch.dtype):
        return MixedPrecisionPolicy(param_dtype=mixed_precision, reduce_dtype=torch.float32)
    return mixed_precision or MixedPrecisionPolicy()


def _norms(model: nn.Module, policy: MixedPrecisionPolicy) -> dict[nn.Module, MixedPrecisionPolicy]:
    """Return the layers with running statistics, each with a policy that computes in the statistics' own type.

    torch normalises no 16-bit values by 16-bit weights and 32-bit statistics.
    """
    return {
        module: replace(policy, param_dtype=statistics.dtype, output_dtype=policy.param_dtype, cast_forward_inputs=True)
        for name, module in model.named_modules()
        if policy.param_dtype is not None and isinstance(module, _NormBase) and not shares_parameters(model, name)
        for statistics in [module.running_mean]
        if statistics is not None
    }


def _narrow(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast numbers that are wider than a layer's weight to the weight's type."""
    weight = cast(torch.Tensor, layer.weight)
    return tuple(
        value.to(weight.dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.itemsize > weight.itemsize
        else value
        for value in inputs
    )


def _placement(state: State) -> Callable[[nn.Parameter], Any]:
    from torch.distributed.tensor import DTensor, Shard

    mesh = state.mesh.degrees
    degree, allow_empty = mesh.shard * mesh.context, state.settings.allow_empty_shards

    def placement(parameter: nn.Parameter) -> Any:
        shape = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
        return Shard(shard_dimension(shape, degree, allow_empty=allow_empty))

    return placement


def _refuse_config(config: Mapping[str, Any] | None) -> None:
    """Raise `ParallelError` for settings of AWS's transformer layers, none of which exist here."""
    if not config:
        return
    names = ", ".join(map(str, config))
    raise ParallelError(
        f"transform(config=...) sets {names}: Herringbone keeps the model's own layers, without FP8 and mixtures of"
        " experts. Leave config out; degrees belong into the job's distribution, and how to split a layer into plan"
    )
