"""The library's state in a process: `init` makes it, `shutdown` takes it down.

    state.init()
    state.get().mesh.shards        # the ranks that `fully_shard` splits parameters over

It holds the settings, the job's mesh and this rank's device.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.version2 import ResolvedModelParallelV2
from herringbone_contract.served import RECENT_TORCH
from herringbone_parallel.core import launch
from herringbone_parallel.torch.sharding import defaults
from herringbone_parallel.torch.sharding.cache_flushes import CacheFlushes
from herringbone_parallel.torch.sharding.mesh import JobMesh, open_mesh
from herringbone_parallel.torch.sharding.parameters.refusals import watch_optimizers
from herringbone_parallel.torch.sharding.partial_numbers import join_parts
from herringbone_parallel.torch.shared_devices import share_devices
from herringbone_parallel.torch.step_hook import count_steps

if TYPE_CHECKING:
    from herringbone_parallel.torch.sharding.parameters.order import CallOrder


@dataclass
class State:
    """The library's state in this process, from `init` to the end."""

    settings: ResolvedModelParallelV2
    mesh: JobMesh
    local_rank: int
    device: torch.device
    # Whether `init` made torch's default process group. `shutdown` then destroys it.
    owns_group: bool
    cache_flushes: CacheFlushes | None = None
    # The models that `transform` has returned, and their layers.
    transformed: WeakSet[torch.nn.Module] = field(default_factory=WeakSet)
    layers: WeakSet[torch.nn.Module] = field(default_factory=WeakSet)

    _call_order: CallOrder | None = None

    def call_order(self) -> CallOrder:
        """Return the object that compares the ranks' calls of sharded models. All ranks ask for it at the same time."""
        from herringbone_parallel.torch.sharding.parameters.order import CallOrder

        if self._call_order is None:
            self._call_order = CallOrder(dist.new_group(backend="gloo"), each=self.device.type == "cpu")
        return self._call_order

    @property
    def asks_for_sharding(self) -> bool:
        """Say whether the job names degrees. Without any, `FullyShardedDataParallel` does what the script says."""
        settings = self.settings
        degrees = (settings.tensor_parallel_degree, settings.context_parallel_degree, settings.hybrid_shard_degree)
        return degrees != (1, 1, 0)


_state: State | None = None


def get() -> State:
    """Return the state. Raises `ParallelError` before `init`."""
    if _state is None:
        raise ParallelError("torch.sagemaker.init() has not been called; call it first in the script")
    return _state


def is_initialized() -> bool:
    """Say whether `init` has run."""
    return _state is not None


def init(config: str | Mapping[str, Any] | None = None) -> None:
    """Join the other ranks of the job, with the settings of the estimator's `distribution` dict.

        import torch.sagemaker as tsm
        tsm.init()

    `config` holds settings of the script, or is the path of a JSON file of them; settings of the job win. Uses torch's
    default process group if the script has made one, and makes one otherwise: NCCL on CUDA devices, gloo on CPUs. A
    second call does nothing. Raises `ParallelError` outside a launched rank, for settings of version 1, and for a torch
    older than 2.6; raises `DistributionError` for degrees that do not fit the ranks.
    """
    global _state
    if _state is not None:
        return
    check_torch(torch.__version__)
    settings = launch.model_parallel_v2(os.environ, _read(config))
    place = launch.rank_info(os.environ)
    degrees = settings.mesh(place.size)
    device, backends = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        share_devices(os.environ, place, torch.cuda.device_count())
        # gloo too: checkpoints and pickled objects travel over the CPU.
        backends = "cpu:gloo,cuda:nccl"
    _leave_accelerate()
    owns_group = not dist.is_initialized()
    if owns_group:
        dist.init_process_group(backends, rank=place.rank, world_size=place.size)
    flushes = CacheFlushes.of_cuda() if settings.fsdp_cache_flush_warnings and device.type == "cuda" else None
    mesh = open_mesh(degrees, place.rank, device.type)
    _state = State(settings, mesh, place.local_rank, device, owns_group, flushes)
    if flushes is not None:
        flushes.watch()
    if _state.asks_for_sharding:
        defaults.install(_state.mesh, device)
        watch_optimizers()
    if settings.sm_activation_offloading:
        defaults.offload(settings.activation_loading_horizon, device)
    count_steps()
    join_parts()
    # The script need not call it. A process group that nobody destroys makes torch warn at the end.
    atexit.register(shutdown)


def shutdown() -> None:
    """Leave the other ranks. Runs by itself at the end of the script; a second call does nothing."""
    global _state
    if _state is None:
        return
    state, _state = _state, None
    defaults.uninstall()
    if state.cache_flushes is not None:
        state.cache_flushes.close()
    checkpoint = sys.modules.get("herringbone_parallel.torch.checkpoint.api")
    try:
        # A checkpoint that is written in the background still needs the process group.
        if checkpoint is not None and dist.is_initialized():
            checkpoint.finalize()
    finally:
        if state.owns_group and dist.is_initialized():
            dist.destroy_process_group()


def _leave_accelerate() -> None:
    """Drop the settings by which accelerate would shard the model too: this script shards it by itself."""
    for name in filter(None, os.environ.pop("HERRINGBONE_ACCELERATE", "").split(",")):
        os.environ.pop(name, None)


def check_torch(version: str) -> None:
    """Raise `ParallelError` for a torch without the parts that version 2 is made of.

    >>> check_torch("2.13.0+cpu")
    """
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) < RECENT_TORCH:
        oldest = ".".join(map(str, RECENT_TORCH))
        raise ParallelError(
            f"version 2 of smdistributed.modelparallel needs torch {oldest} or newer, and this rank has torch"
            f" {version}: set framework_version to {oldest} or newer, or install it with the job's requirements.txt"
        )


def _read(config: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if not isinstance(config, str):
        return config
    try:
        read = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParallelError(f"torch.sagemaker.init({config!r}) reads a JSON file, and cannot: {error}") from error
    if not isinstance(read, dict):
        raise ParallelError(f"torch.sagemaker.init({config!r}): the file holds no JSON object of settings")
    return read
