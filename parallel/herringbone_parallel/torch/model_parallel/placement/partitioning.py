"""The automatic partition: the first rank loads it, or measures the model and decides, and sends it to all ranks.

partition_file      the first rank writes its decision and the costs to this file
load_partition      the first rank reads the file instead: no trace, and the same split as last time
skip_tracing        it decides by the sizes of the parameters; it also does so when they have no values yet
"""

from __future__ import annotations

import time
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
from herringbone_parallel.partition_file import write
from herringbone_parallel.torch.model_parallel.failures import REPORT_SECONDS, PeerFailedError, described
from herringbone_parallel.torch.model_parallel.placement.delayed import any_delayed
from herringbone_parallel.torch.model_parallel.placement.link import clock_link
from herringbone_parallel.torch.model_parallel.placement.measure import Live, measure, optimizer_state_of, suppose
from herringbone_parallel.torch.model_parallel.placement.partition_file import load
from herringbone_parallel.torch.model_parallel.state import State, TrialRun

if TYPE_CHECKING:
    from herringbone_contract.model_parallel.version1 import ResolvedModelParallel

# The fraction of a step that is lost when microbatches come back to a rank. These are medians over random paths in the
# simulator, with 2 to 8 partitions and 4 to 16 microbatches. Schedules that prefer backwards lose more.
_REVISIT_COST = {"simple": 0.03, "_only_forward": 0.03}
_REVISIT_COST_OF_OTHERS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The options of a trace: `trace_device` and `trace_execution_times` of `DistributedModel`.

    `device` is "cpu", or "gpu" for the rank's own device, whatever that is. With `clock` the seconds are measured and
    differ a little from run to run. Otherwise they are estimated from what the operations compute and touch.
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


def agree(library: State, module: nn.Module, run: TrialRun, tracing: Tracing) -> dict[str, int]:
    """Return the partition of each module with parameters or buffers of its own; every rank of the job must call it.

    A failure of the first rank is raised there, and as `PeerFailedError` on the other ranks.
    """
    link = None
    if tracing.clock and not library.settings.skip_tracing and not library.settings.load_partition:
        ranks = library.grid.group("P", library.rank)
        link = clock_link(ranks, library.groups[CommGroup.PP_GROUP], library.device)
    failure: Exception | None = None
    # A dict is the partition, a string is the first rank's failure.
    outcome: list[Any] = [None]
    if library.rank == 0:
        try:
            outcome = [_decided(library, module, run, tracing, link)]
        except Exception as error:  # noqa: BLE001  the other ranks wait for it, whatever it is
            failure = error
            outcome = [described(error)]
    _broadcast(library, outcome)
    if failure is not None:
        raise failure
    if isinstance(outcome[0], str):
        # The failed rank's own error should come first.
        time.sleep(REPORT_SECONDS)
        raise PeerFailedError(f"rank 0 failed while it decided the partition: {outcome[0]}")
    assigned: dict[str, int] = outcome[0]
    return assigned


def _decided(library: State, module: nn.Module, run: TrialRun, tracing: Tracing, link: Link | None) -> dict[str, int]:
    settings = library.settings
    if settings.load_partition:
        assert settings.partition_file is not None, "the grammar asks for both"
        return load(Path(settings.partition_file), module, settings.partitions)
    # Of the optimizers that exist at the first step; the memory of a later one is not counted.
    states: dict[int, float] = {}
    for wrapper in library.optimizers:
        states |= optimizer_state_of([wrapper.optimizer], masters=wrapper.scales)
    if settings.skip_tracing or any_delayed(module):
        tree = suppose(module, states)
    else:
        tree = _traced(library, module, run, tracing, states, link)
    on_gpu = library.device.type == "cuda"
    cap = torch.cuda.get_device_properties(library.device).total_memory if on_gpu else None
    decision = decide(
        tree,
        settings.partitions,
        memory_weight=settings.memory_weight,
        memory_cap=cap,
        revisit_cost=_REVISIT_COST.get(settings.pipeline, _REVISIT_COST_OF_OTHERS),
    )
    if settings.partition_file is not None:
        write(Path(settings.partition_file), record(tree, decision))
    return decision.assigned


def _traced(
    library: State, module: nn.Module, run: TrialRun, tracing: Tracing, states: dict[int, float], link: Link | None
) -> CostTree:
    on_gpu = tracing.device == "gpu" and library.device.type == "cuda"
    device = library.device if on_gpu else torch.device("cpu")
    live = Live(microbatches=live_microbatches(library.settings), state_of=states)
    # The rates of the device that trains, also when the CPU traces.
    rates = CUDA if library.device.type == "cuda" else CPU
    library.tracing = True
    try:
        module.to(device)
        return measure(module, partial(run, device), rates, live, clocked_link=link)
    except torch.cuda.OutOfMemoryError as error:
        raise ParallelError(
            "the whole model does not fit the GPU that traces it: trace it on the CPU, with"
            " smp.DistributedModel(..., trace_device='cpu'), or set `skip_tracing`"
        ) from error
    finally:
        library.tracing = False


def live_microbatches(settings: ResolvedModelParallel) -> int:
    """Return how many microbatches may wait for their backward at once."""
    if settings.pipeline == "simple":
        return settings.microbatches
    return min(settings.active_microbatches, settings.microbatches)


def _broadcast(library: State, outcome: list[Any]) -> None:
    try:
        dist.broadcast_object_list(outcome, src=0, group=library.groups[CommGroup.WORLD], device=torch.device("cpu"))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ParallelError(f"lost contact with rank 0 while it decided the partition: {reason}") from error
