"""Complete accelerate, and with it Hugging Face's Trainer, for a job whose keys split the model.

The launcher sets accelerate's variables, so accelerate 1.15 shards the model by torch's `fully_shard`. A rank calls
`complete` after its script has imported accelerate. It adds what these variables cannot:

    sharding on CPUs       accelerate refuses it, because one list of device types does not name them
    equal initial values   `fully_shard` takes each rank's own part, while DistributedDataParallel takes rank 0's values
    tensor parallelism     accelerate skips models that transformers has not split while it loaded them
    context parallelism    accelerate's way needs CUDA's attention kernels, and causal masks
    shared parameters      accelerate shards embeddings apart, also where another module holds or shares them; and it
                           saves a shared parameter once for each module
    offloading             accelerate's way waits for every copy, and knows no `activation_loading_horizon`

    Accelerator()               [1] a mesh of all degrees, from the variables
    prepare(model, optimizer)   [2] our parts change the model; the optimizer gets the new parameters
                                [3] accelerate's own part shards the model
    get_state_dict(model)       [4] a parameter that modules share is one tensor, as in one process
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.optim import Optimizer

from herringbone_contract.library_hooks import require
from herringbone_parallel.core import launch
from herringbone_parallel.torch.hugging_face_hooks import ACCELERATE


def complete() -> None:
    """Change accelerate's classes once, after the import of `accelerate.accelerator`."""
    from accelerate import accelerator, parallelism_config, state
    from accelerate.utils import fsdp_utils

    from herringbone_parallel.torch.sharding import shared

    require(ACCELERATE)
    # [1]
    config = parallelism_config.ParallelismConfig
    config.dp_shard_enabled = property(_has_shards)
    config.__post_init__ = _with_replicas_of_split_models(config.__post_init__)
    state.AcceleratorState.__init__ = _sharding_on_cpus(state)
    # [2]
    cls = accelerator.Accelerator
    cls._prepare_tp = _unless_ours(cls._prepare_tp)
    cls._prepare_cp = _without_context
    cls._prepare_fsdp2 = _after_our_parts(cls._prepare_fsdp2)
    # [3]
    fsdp_utils.fsdp2_prepare_auto_wrap_policy = shared.policy_of(fsdp_utils.fsdp2_prepare_auto_wrap_policy)
    accelerator.fsdp2_prepare_model = shared.preparation_of(accelerator.fsdp2_prepare_model)
    # [4]
    cls.get_state_dict = shared.states_of(cls.get_state_dict)
    fsdp_utils._get_model_state_dict = shared.states_of(fsdp_utils._get_model_state_dict)


def _has_shards(config: Any) -> bool:
    """Say whether the mesh has an axis of shards: also one of a single rank, where only layers are split.

    accelerate prepares a model by `fully_shard` or by DistributedDataParallel, which refuses split layers.
    """
    return bool(config.dp_shard_size > 1 or config.tp_size > 1)


def _with_replicas_of_split_models(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a `ParallelismConfig.__post_init__` that accepts copies of a model of which only layers are split.

    accelerate refuses them for want of an axis of shards, which `_has_shards` gives the mesh: one of a single rank.
    """

    def __post_init__(self: Any) -> None:  # noqa: N807 - its name
        given = self.dp_replicate_size
        replicas = int(os.environ.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1")) if given is None else given
        if replicas > 1:
            self.dp_replicate_size = 1
        original(self)
        if replicas > 1:
            self._set_size("dp_replicate", replicas)

    return __post_init__


def _sharding_on_cpus(state: Any) -> Callable[..., None]:
    """Return an `AcceleratorState.__init__` that treats CPUs as the devices in its list."""
    original = state.AcceleratorState.__init__

    def __init__(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:  # noqa: N807 - its name
        original(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is None or self.distributed_type != state.DistributedType.MULTI_CPU:
            return
        self.distributed_type = state.DistributedType.FSDP
        if self.mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self.mixed_precision)
        self.fsdp_plugin = fsdp_plugin
        # The next `AcceleratorState()` takes the type from there.
        state.PartialState._shared_state["distributed_type"] = self.distributed_type

    return __init__


def _unless_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    def _prepare_tp(self: Any, *args: Any) -> Any:
        # A model that transformers has split while it loaded it stays as it is; ours is split in `_prepare_fsdp2`.
        return args if self.is_fsdp2 and not _is_split(args) else original(self, *args)

    return _prepare_tp


def _without_context(self: Any, *args: Any) -> Any:
    def whole_batch(**_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    # `Trainer` enters it around each step to cut the batch; our layers take their rows of the whole batch themselves.
    self._cp_context = whole_batch
    return args


def _after_our_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    def _prepare_fsdp2(self: Any, *args: Any) -> Any:
        from herringbone_parallel.torch.sharding.parameters.refusals import watch_optimizers

        watch_optimizers()
        models = [part for part in args if isinstance(part, nn.Module)]
        optimizers = [part for part in args if isinstance(part, Optimizer)]
        # accelerate refuses more than one model, and a model without an optimizer.
        for model in models:
            if not _is_split(models):
                _split(self, model, optimizers)
        return original(self, *args)

    return _prepare_fsdp2


def _split(accelerator: Any, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Apply our parts to a model on its device, and give the optimizers its new parameters."""
    from herringbone_parallel.torch.sharding.transform import copy_from_rank0

    mesh, degrees, plugin = accelerator.torch_device_mesh, accelerator.parallelism_config, accelerator.state.fsdp_plugin
    if mesh is None:
        return
    if accelerator.device.type == "cuda" and launch.model_parallel_v2(os.environ).fsdp_cache_flush_warnings:
        from herringbone_parallel.torch.sharding.cache_flushes import CacheFlushes

        CacheFlushes.of_cuda().watch()
    before = dict(model.named_parameters())
    if not plugin.cpu_ram_efficient_loading:
        copy_from_rank0(model, accelerator.device)
    if degrees.tp_enabled:
        from herringbone_parallel.torch.tensor_parallel.parallelize import parallelize

        parallelize(model, mesh["tp"])
    if degrees.cp_enabled:
        from herringbone_parallel.torch.context_parallel.enable import enable

        enable(model, mesh["cp"])
    after = {id(before[name]): parameter for name, parameter in model.named_parameters() if name in before}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [after.get(id(parameter), parameter) for parameter in group["params"]]
    if plugin.activation_checkpointing_offload:
        _offload(model, plugin, accelerator.device)


def _offload(model: nn.Module, plugin: Any, device: Any) -> None:
    """Checkpoint the model's layers, and keep their inputs in the host's memory, instead of accelerate."""
    from accelerate.utils import fsdp_utils
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from herringbone_parallel.torch.offloading import LayerOffloading

    plugin.set_auto_wrap_policy(model)
    is_layer = fsdp_utils.fsdp2_prepare_auto_wrap_policy(plugin, model)
    offloading = LayerOffloading(horizon=launch.model_parallel_v2(os.environ).activation_loading_horizon, device=device)
    for name, module in list(model.named_modules()):
        if name and is_layer is not None and is_layer(module):
            # With the random numbers of the forward, which accelerate does not repeat: dropout differs otherwise.
            wrapper = checkpoint_wrapper(module)
            offloading.wrap(wrapper)
            model.set_submodule(name, wrapper)
    plugin.activation_checkpointing = plugin.activation_checkpointing_offload = False


def _is_split(parts: Iterable[Any]) -> bool:
    """Say whether a model among the parts has been split already: by transformers, or by an earlier `prepare`."""
    from torch.distributed.tensor import DTensor

    models = [part for part in parts if isinstance(part, nn.Module)]
    return any(isinstance(parameter, DTensor) for model in models for parameter in model.parameters())
