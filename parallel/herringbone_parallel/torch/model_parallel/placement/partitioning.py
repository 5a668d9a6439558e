"""How the ranks come to one partition: the first one loads it, or measures and decides, and tells the others.

partition_file      the first rank writes what it decided, and what that costs
load_partition      it reads the file instead: no trace, and the same split as last time
skip_tracing        it decides on the sizes of the parameters alone; so it does when they have no values yet
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.core.partition.costs import CostTree, Link
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.record import record
from herringbone_parallel.core.partition.work import CPU, CUDA
from herringbone_parallel.torch.model_parallel.failures import PeerFailedError, described
from herringbone_parallel.torch.model_parallel.placement.delayed import any_delayed
from herringbone_parallel.torch.model_parallel.placement.link import clock_link
from herringbone_parallel.torch.model_parallel.placement.measure import Live, measure, optimizer_state_of, suppose
from herringbone_parallel.torch.model_parallel.placement.partition_file import load, write

if TYPE_CHECKING:
    from herringbone_contract.model_parallel import ResolvedModelParallel
    from herringbone_parallel.torch.model_parallel.state import State

# Runs the first step's function on its first microbatch: on this rank alone, on the device, within the context.
Run = Callable[[torch.device, AbstractContextManager[None]], None]

# What a step loses, as a fraction, when microbatches come back to a rank: medians of random ways in the simulator, with
# 2 to 8 partitions and 4 to 16 microbatches. Schedules that prefer backwards lose more.
_REVISIT_COST = {"simple": 0.03, "_only_forward": 0.03}
_REVISIT_COST_OF_ONE_BY_ONE = 0.1

# The rank that failed should be the first to be heard.
_FIRST_WORD_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """How a model is traced: SMP v1's `trace_device` and `trace_execution_times` of `DistributedModel`.

    `device` is "gpu", the rank's own device whatever that is, or "cpu". With `clock` the clock measures seconds, and
    they differ a little from run to run; without, they are estimated from what the operations compute and touch.
    """

    device: str = "gpu"
    clock: bool = False

    def __post_init__(self) -> None:
        if self.device not in ("gpu", "cpu"):
            raise ParallelError(f"smp.DistributedModel(trace_device={self.device!r}): take 'gpu' or 'cpu'")
        if self.clock and self.device == "cpu" and torch.cuda.is_available():
            raise ParallelError(
                "smp.DistributedModel(trace_execution_times=True, trace_device='cpu'): the CPU's times say nothing of"
                " the GPU's. Leave one of the two out."
            )


def agree(here: State, module: nn.Module, run: Run, tracing: Tracing) -> dict[str, int]:
    """Return the partition of each module with parameters or buffers of its own; every rank of the job must call it.

    What fails on the first rank is raised there, and as `PeerFailedError` on the others.
    """
    link = None
    if tracing.clock and not here.settings.skip_tracing and not here.settings.load_partition:
        ranks = here.grid.group("P", here.rank)
        link = clock_link(ranks, here.groups[CommGroup.PP_GROUP], here.device)
    failure: Exception | None = None
    outcome: list[Any] = [None]
    if here.rank == 0:
        try:
            outcome = [_settled(here, module, run, tracing, link)]
        except Exception as error:  # noqa: BLE001  everything must reach the other ranks
            failure = error
            outcome = [described(error)]
    _tell(here, outcome)
    if failure is not None:
        raise failure
    if isinstance(outcome[0], str):
        time.sleep(_FIRST_WORD_SECONDS)
        raise PeerFailedError(f"rank 0 failed while it decided the partition: {outcome[0]}")
    assigned: dict[str, int] = outcome[0]
    return assigned


def _settled(here: State, module: nn.Module, run: Run, tracing: Tracing, link: Link | None) -> dict[str, int]:
    settings = here.settings
    if settings.load_partition:
        assert settings.partition_file is not None, "the grammar asks for both"
        return load(Path(settings.partition_file), module, settings.partitions)
    states = optimizer_state_of(optimizer.optimizer for optimizer in here.optimizers)
    if settings.skip_tracing or any_delayed(module):
        tree = suppose(module, states)
    else:
        tree = _traced(here, module, run, tracing, states, link)
    cap = torch.cuda.get_device_properties(here.device).total_memory if here.device.type == "cuda" else None
    decision = decide(
        tree,
        settings.partitions,
        memory_weight=settings.memory_weight,
        memory_cap=cap,
        revisit_cost=_REVISIT_COST.get(settings.pipeline, _REVISIT_COST_OF_ONE_BY_ONE),
    )
    if settings.partition_file is not None:
        write(Path(settings.partition_file), record(tree, decision))
    return decision.assigned


def _traced(
    here: State, module: nn.Module, run: Run, tracing: Tracing, states: dict[int, float], link: Link | None
) -> CostTree:
    on_gpu = tracing.device == "gpu" and here.device.type == "cuda"
    device = here.device if on_gpu else torch.device("cpu")
    live = Live(microbatches=live_microbatches(here.settings), state_of=states)

    rates = CUDA if here.device.type == "cuda" else CPU
    here.tracing = True
    try:
        module.to(device)
        return measure(module, partial(run, device), rates, live, clocked_link=link)
    except torch.cuda.OutOfMemoryError as error:
        raise ParallelError(
            "the whole model does not fit the GPU that traces it: trace it on the CPU, with"
            " smp.DistributedModel(..., trace_device='cpu'), or set `skip_tracing`"
        ) from error
    finally:
        here.tracing = False


def live_microbatches(settings: ResolvedModelParallel) -> int:
    """Return how many microbatches may wait for their backward at once."""
    if settings.pipeline == "simple":
        return settings.microbatches
    return min(settings.active_microbatches, settings.microbatches)


def _tell(here: State, outcome: list[Any]) -> None:
    try:
        dist.broadcast_object_list(outcome, src=0, group=here.groups[CommGroup.WORLD], device=torch.device("cpu"))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ParallelError(f"lost contact with rank 0 while it decided the partition: {reason}") from error
