"""Give torch's own `fully_shard` and `FullyShardedDataParallel` the job's mesh where a script names none.

    fully_shard(model)                       # over the job's shards, and not over all ranks
    FullyShardedDataParallel(model, ...)     # AWS's scripts for version 2 call this class after `transform`

Scripts import both names before or after `init`, so the names stay, and their default arguments change.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.torch import library_hooks
from herringbone_parallel.torch.sharding import parts
from herringbone_parallel.torch.sharding.mesh import JobMesh

# What `uninstall` calls to restore torch's own behaviour.
_restore: list[Callable[[], None]] = []


def install(mesh: JobMesh, device: torch.device) -> None:
    """Make `mesh` the default of both, in this process."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    require(library_hooks.SHARDING)
    # The mesh is a keyword-only argument of the function below torch's decorator.
    defaults = inspect.unwrap(fully_shard).__kwdefaults__
    defaults["mesh"] = mesh.shards
    _restore.append(lambda: defaults.update(mesh=None))
    original = FullyShardedDataParallel.__init__
    FullyShardedDataParallel.__init__ = _with_mesh(original, mesh, device)  # type: ignore[method-assign]
    _restore.append(lambda: setattr(FullyShardedDataParallel, "__init__", original))


def offload(horizon: int, device: torch.device) -> None:
    """Make torch's `offload_wrapper` load activations back ahead of their use, in this process."""
    # Imported here: jobs without offloading do without it.
    from herringbone_parallel.torch.sharding.activations import replace_offload_wrapper

    require(library_hooks.OFFLOADING)
    _restore.append(replace_offload_wrapper(horizon, device))


def uninstall() -> None:
    """Restore torch's own defaults; does nothing where they are in place."""
    parts.forget()
    while _restore:
        _restore.pop()()


def _with_mesh(original: Callable[..., None], mesh: JobMesh, device: torch.device) -> Callable[..., None]:
    def __init__(  # noqa: N807 - it becomes the method of that name
        self: nn.Module,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        *args: Any,
        post_param_init_fn: Callable[[nn.Module], object] | None = None,
        **options: Any,
    ) -> None:
        if process_group is None and options.get("device_mesh") is None:
            sharding_strategy = _strategy(sharding_strategy, mesh.degrees)
            options["device_mesh"] = mesh.shards if _shards(mesh.degrees) > 1 else mesh.replicas
        if options.get("device_id") is None and device.type == "cpu":
            # Without a device, torch looks for an accelerator and raises where there is none.
            options["device_id"] = device
        cut = parts.make_plain(module) if mesh.tensor is not None else frozenset()
        with warnings.catch_warnings():
            # The user has set the degree that leads to this strategy, and can set no other.
            warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated", FutureWarning)
            original(self, module, process_group, sharding_strategy, *args, **options)
        if mesh.tensor is not None:
            parts.remember(self, cut)
            group = mesh.tensor.get_group()
            # torch's own method knows the shards only.
            vars(self)["clip_grad_norm_"] = lambda max_norm, norm_type=2.0: parts.clip(self, max_norm, norm_type, group)
        if post_param_init_fn is not None:
            post_param_init_fn(module)

    return __init__


def _strategy(named: Any, degrees: Mesh) -> Any:
    """Return the strategy that the mesh allows: the named one, with replicas or without as the job has them.

    Raises `ParallelError` for NO_SHARD in a job that shards: FullyShardedDataParallel would shard in spite of it.
    """
    from torch.distributed.fsdp import ShardingStrategy

    shards = _shards(degrees)
    if named is ShardingStrategy.NO_SHARD and shards > 1:
        raise ParallelError(
            f"FullyShardedDataParallel with NO_SHARD: the job shards the training state over {shards} ranks. Set the"
            " job's hybrid_shard_degree to 1, leave sharding_strategy out, or give a process_group of the script's own"
        )
    if shards == 1:
        # By the other strategies torch would sum over the shards of one rank, and never over the replicas.
        return ShardingStrategy.NO_SHARD
    replicas = degrees.replicate > 1
    keeps_parameters = (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2)
    if named in keeps_parameters:
        return keeps_parameters[replicas]
    return ShardingStrategy.HYBRID_SHARD if replicas else ShardingStrategy.FULL_SHARD


def _shards(degrees: Mesh) -> int:
    return degrees.shard * degrees.context
