"""The library's state in a process: `smp.init` makes it, `shutdown` takes it down.

It holds the settings, this rank's position in the grid, the process groups and the transport. Modules that other
modules here reach through the state, such as the model, are known by the few members that are used (`StepModel`).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.allocator import keep_pages
from herringbone_parallel.core import launch
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.core.ranks import Ranks
from herringbone_parallel.torch import library_hooks
from herringbone_parallel.torch.checkpoint import api as checkpoint
from herringbone_parallel.torch.model_parallel.groups import open_groups, open_reduction_group
from herringbone_parallel.torch.model_parallel.precision.loss_scale import LossScale
from herringbone_parallel.torch.model_parallel.replicas.replicas import Replicas, job_store
from herringbone_parallel.torch.model_parallel.runtime import deferral
from herringbone_parallel.torch.model_parallel.runtime.shapes import ShapeBook
from herringbone_parallel.torch.model_parallel.runtime.thread_pool import ThreadPool
from herringbone_parallel.torch.model_parallel.runtime.transport import NEVER, Transport
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup, open_shard_group
from herringbone_parallel.torch.model_parallel.timeline import Timeline, open_timeline
from herringbone_parallel.torch.shared_devices import share_devices
from herringbone_parallel.torch.tensor_parallel.operations import Peers

if TYPE_CHECKING:
    from herringbone_contract.model_parallel.version1 import ResolvedModelParallel
    from herringbone_parallel.torch.model_parallel.runtime.kept.versions import Kept
    from herringbone_parallel.torch.model_parallel.shards.shards import Shards
    from herringbone_parallel.torch.offloading.tasks import TaskOffloading

# Runs the step function on its first microbatch: on this rank alone, on the device, inside the context manager.
TrialRun = Callable[[torch.device, AbstractContextManager[None]], None]


class StepReducer(Protocol):
    """The part of `Reducer` that a step uses."""

    def step(self) -> AbstractContextManager[None]: ...
    def retire(self) -> None: ...


class StepModel(Protocol):
    """The part of `DistributedModel` that a step uses."""

    average_grads_across_microbatches: bool
    module: nn.Module

    @property
    def partitioned(self) -> bool: ...
    @property
    def reducer(self) -> StepReducer | None: ...
    @property
    def shards(self) -> Shards | None: ...
    def settle(self, run: TrialRun) -> None: ...
    def end_step(self) -> None: ...


class OptimizerWrapper(Protocol):
    """The part of `DistributedOptimizer` that the partition, clipping and `model.join` use."""

    optimizer: torch.optim.Optimizer

    @property
    def scales(self) -> bool: ...
    def unscale(self) -> bool: ...
    def trained(self, parameter: torch.Tensor) -> torch.Tensor: ...
    def parameter_of(self, tensor: torch.Tensor) -> torch.Tensor: ...


@dataclass
class State:
    """The library's state in this process, from `init` to the end."""

    settings: ResolvedModelParallel
    grid: Grid
    rank: int
    local_rank: int
    local_size: int
    device: torch.device
    transport: Transport | None
    groups: Mapping[CommGroup, dist.ProcessGroup]
    book: ShapeBook = field(default_factory=ShapeBook)
    replicas: Replicas | None = None
    # The ranks that share layers with this one; None with `tensor_parallel_degree` 1.
    peers: Peers | None = None
    shard_group: ShardGroup | None = None
    pool: ThreadPool = field(default_factory=ThreadPool)
    model: StepModel | None = None
    optimizers: list[OptimizerWrapper] = field(default_factory=list)
    # The number of steps begun, which is also the number of the newest step: messages carry it.
    steps: int = 0
    # The number of calls of `model.backward`, in all microbatches.
    backwards: int = 0
    # True once a step with a backward has shown whether activations move.
    offloading_checked: bool = False
    # The scale of the loss, which an optimizer has asked for.
    loss_scale: LossScale | None = None
    tracing: bool = False
    # The last step that failed on this rank; 0 if none did.
    failed_step: int = 0
    timeline: Timeline | None = None
    # What a step function and the model keep from one microbatch to another.
    kept: dict[Any, Kept] = field(default_factory=dict)
    # Of the running or the last step, where the job offloads activations.
    offloading: TaskOffloading | None = None

    @cached_property
    def pp_rank(self) -> int:
        """This rank's index in its pipeline, which is also its partition."""
        return self.grid.coordinates(self.rank)["P"]

    def scale_loss(self, scale: LossScale | None) -> None:
        """Multiply the loss by the scale of a new optimizer. Raises `ParallelError` if another optimizer differs."""
        known = self.loss_scale
        same = scale is known
        if scale is not None and known is not None:
            # A dynamic scale has a rule that no number equals: each optimizer would change it on its own.
            same = scale.rule == known.rule == scale.value
        if self.optimizers and not same:
            raise ParallelError(
                "several smp.DistributedOptimizer without the same static_loss_scale: model.backward multiplies the"
                " loss by one scale, for all of them. Give each of them the same static_loss_scale, or put all"
                " parameters into one optimizer"
            )
        self.loss_scale = scale

    def reducing(self) -> AbstractContextManager[None]:
        """Average over the replicas, if there are any, the gradients that the `with` block adds up."""
        reducer = None if self.model is None else self.model.reducer
        return nullcontext() if reducer is None else reducer.step()


_state: State | None = None


def get() -> State:
    """Return the state. Raises `ParallelError` before `init`."""
    if _state is None:
        raise ParallelError("smp.init() has not been called; call it first in the script")
    return _state


# This rank's numbers, sizes and groups.
ranks = Ranks(get)


def is_initialized() -> bool:
    """Say whether `init` has run."""
    return _state is not None


def is_tracing() -> bool:
    """Say whether this call of the step function only measures the model, for the automatic partition.

        if not smp.is_tracing():
            examples_seen += len(images)

    That is the first call of the first step, on rank 0 only. Its results are discarded.
    """
    return _state is not None and _state.tracing


def init(config: Mapping[str, Any] | None = None) -> None:
    """Join the other ranks of the job, with the settings of the estimator's `distribution` dict.

        import smdistributed.modelparallel.torch as smp
        smp.init()
        smp.init({"microbatches": 4})       # counts if the job's dict has no `microbatches`

    The job's settings win over those in `config`, with a warning on rank 0 where they differ. A second call does
    nothing. Raises `ParallelError` outside a launched rank, and for settings that this release
    cannot serve.
    """
    global _state
    if _state is not None:
        return
    require(library_hooks.MODEL_PARALLEL)
    settings = launch.model_parallel(os.environ, "pytorch", config)
    place = launch.rank_info(os.environ)
    rank, size = place.rank, place.size
    grid = Grid(settings.mesh(size), settings.placement)
    refuse(settings, grid)
    device = torch.device("cpu")
    backends = "gloo"
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        share_devices(os.environ, place, torch.cuda.device_count())
        # gloo too: headers and pickled objects travel over the CPU.
        backends = "cpu:gloo,cuda:nccl"
    # A script may have initialised torch.distributed itself; its default group then stays.
    if not dist.is_initialized():
        dist.init_process_group(backends, init_method=_rendezvous(settings), rank=rank, world_size=size)
    if grid.pipeline > 1:
        # Each step frees and allocates the same activations: pages that go back to the system cost page faults.
        keep_pages()
    # Making a group is a collective call of the whole job, so the order of these calls is the same on every rank.
    groups = open_groups(grid, rank)
    transport = _open_transport(grid, rank, device)
    replicas = None
    shard_group = None
    backend = "gloo" if settings.ddp_dist_backend == "gloo" else backends
    reduction = open_reduction_group(grid, rank, backend)
    if reduction is not None:
        replicas = Replicas(grid.group("D", rank), rank, grid.group("P", rank), reduction, job_store())
        host = rank - place.local_rank
        hierarchical = settings.sdp_hierarchical_allgather
        shard_group = open_shard_group(grid, rank, host, backend, replicas, hierarchical=hierarchical)
        if settings.shard_optimizer_state:
            shard_group = ShardGroup(replicas, None, replicas)
    timeline = open_timeline(rank, size, os.environ)
    _state = State(
        settings=settings,
        grid=grid,
        rank=rank,
        local_rank=place.local_rank,
        local_size=place.local_size,
        device=device,
        transport=transport,
        groups=groups,
        replicas=replicas,
        peers=None if grid.tensor == 1 else Peers(groups[CommGroup.TP_GROUP]),
        shard_group=shard_group,
        timeline=timeline,
    )
    # The script need not call it: peers must learn that this rank leaves, or they would wait for it.
    atexit.register(shutdown)


def shutdown() -> None:
    """Leave the other ranks. Runs by itself at the end of the script; a second call does nothing."""
    global _state
    if _state is None:
        return
    state, _state = _state, None
    try:
        if not 0 < state.failed_step == state.steps:
            # A checkpoint that is written in the background needs the other ranks.
            checkpoint.finalize()
    finally:
        _leave(state)


def _leave(state: State) -> None:
    # In this order: replicas that wait for this rank learn first that it leaves. The groups are destroyed last, because
    # the timeline and the transport still use them.
    if state.replicas is not None:
        state.replicas.leave()
    if state.model is not None and state.model.reducer is not None:
        state.model.reducer.retire()
    state.pool.close()
    last_step_succeeded = not 0 < state.failed_step == state.steps
    if state.timeline is not None and last_step_succeeded:
        state.timeline.hand_in(job_store())
    if state.transport is not None:
        state.transport.close(patient=last_step_succeeded)
    if dist.is_initialized():
        dist.destroy_process_group()


def _rendezvous(settings: ResolvedModelParallel) -> str:
    """Return the rendezvous of the ranks: the launcher's, or the port `ddp_port` of its host if that is set."""
    if settings.ddp_port is None:
        return "env://"
    return f"tcp://{launch.variable(os.environ, RankVariable.MASTER_ADDRESS)}:{settings.ddp_port}"


def refuse(settings: ResolvedModelParallel, grid: Grid) -> None:
    """Raise `ParallelError` for settings that this torch, these ranks or these devices cannot serve."""
    if settings.pipeline == "zero_bubble" and not deferral.is_supported():
        raise ParallelError("not available with this torch: pipeline 'zero_bubble'; use 'interleaved'")
    if grid.data > 1 and not settings.ddp:
        raise ParallelError(
            f"{grid.world_size} ranks with {grid.pipeline} partitions make {grid.data} replicas of the pipeline, and"
            f" nothing would average their gradients: set 'ddp': True, or start {grid.pipeline} ranks."
        )
    if settings.ddp_dist_backend == "nccl" and not torch.cuda.is_available():
        raise ParallelError("ddp_dist_backend 'nccl' needs CUDA devices, and this rank has none; use 'gloo' or 'auto'")
    automatic = settings.auto_partition and grid.pipeline > 1
    if settings.partition_file is not None and not automatic:
        raise ParallelError(
            "partition_file keeps an automatic partition, and this job has none: set `auto_partition`, with more than"
            " one partition, or unset `partition_file` and `load_partition`"
        )


def _open_transport(grid: Grid, rank: int, device: torch.device) -> Transport | None:
    """Return this rank's transport, None in a pipeline of one rank; every rank of the job must call it.

    Each rank makes the groups of all pipelines, because making a group is a collective call of the whole job.
    """
    if grid.pipeline == 1:
        return None
    transport: Transport | None = None
    for ranks in grid.groups("P"):
        group = dist.new_group(list(ranks), backend="gloo", timeout=NEVER)
        pairs = {}
        if device.type == "cuda":
            for source in range(len(ranks)):
                for target in range(len(ranks)):
                    if source != target:
                        pairs[source, target] = dist.new_group([ranks[source], ranks[target]], backend="nccl")
        if rank in ranks:
            transport = Transport(rank, ranks, group, pairs)
    return transport
