"""Time the work of the pipeline's runtime, in two processes.

    work = pipeline_work(rank, folder)          # in both processes; `folder` is where they meet
    work.step_s, work.microbatch_s, work.call_s, work.value_s

A rank of a pipeline runs the user's Python for every microbatch, keeps a tape, and sends and waits for messages,
however small the layers are. A small model is trained in this way and alone, so its operations do not count.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.constants import RankVariable
from herringbone_parallel.core.prediction.measurement import PipelineWork

RANKS = 2
_PARAMETERS = "SM_HP_MP_PARAMETERS"
_WIDTH, _SAMPLES = 8, 2
_FEW, _MANY = 1, 5
_WARM_UP, _REPEATS = 3, 16


class _Model(nn.Module):
    """One layer after the other; operations follow each of them, outside of modules."""

    def __init__(self, layers: int, operations: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers))
        self.operations = operations

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = layer(batch)
            for _ in range(self.operations):
                batch = batch * 2.0
        return batch


class _Case(NamedTuple):
    """The ranks of a model's layers, and the operations after each of them."""

    ranks: tuple[int, ...]
    operations: int = 0


# One value passes, then three, and operations that every rank sees.
_PLAIN, _CROSSED, _CALLED = _Case((0, 0, 1, 1)), _Case((0, 1, 0, 1)), _Case((0, 0, 1, 1), operations=6)
_MORE_VALUES, _MORE_CALLS = 2, 24
# Of the plain model: its layers, and the sum of its result.
_CALLS = 5


def pipeline_work(rank: int, folder: Path) -> PipelineWork:
    """Return the processor seconds of this rank; ranks 0 and 1 call it, with the same folder and without a group."""
    return solved(
        few=_added(rank, _PLAIN, _FEW, folder / "few"),
        many=_added(rank, _PLAIN, _MANY, folder / "many"),
        called=_added(rank, _CALLED, _MANY, folder / "called"),
        crossed=_added(rank, _CROSSED, _MANY, folder / "crossed"),
    )


def solved(few: float, many: float, called: float, crossed: float) -> PipelineWork:
    """Return the parts of what a pipeline adds to steps: of few microbatches, of many, with more calls, more values.

    >>> solved(few=5 + (2 + 5 * 0.5 + 3), many=5 + 5 * (2 + 5 * 0.5 + 3), called=102.5, crossed=72.5)
    PipelineWork(step_s=5.0, microbatch_s=2.0, call_s=0.5, value_s=3.0)
    """
    call_s = max(0.0, (called - many) / _MANY / _MORE_CALLS)
    value_s = max(0.0, (crossed - many) / _MANY / _MORE_VALUES)
    whole_s = max(0.0, (many - few) / (_MANY - _FEW))
    return PipelineWork(
        step_s=max(0.0, few - _FEW * whole_s),
        microbatch_s=max(0.0, whole_s - _CALLS * call_s - value_s),
        call_s=call_s,
        value_s=value_s,
    )


def _added(rank: int, case: _Case, microbatches: int, store: Path) -> float:
    """Return the seconds of a step of the pipeline, less those of the rank's part alone."""
    alone = _Model(case.ranks.count(rank), case.operations)
    # The same on both ranks: a step compares its arguments.
    inputs = torch.ones(_SAMPLES * microbatches, _WIDTH)

    def plain() -> None:
        for part in torch.split(inputs, _SAMPLES):
            alone(part).sum().backward()

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    return _pipeline_s(rank, case, microbatches, inputs) - _seconds(plain)


def _pipeline_s(rank: int, case: _Case, microbatches: int, inputs: torch.Tensor) -> float:
    """Return the seconds of a step; leaves the group."""
    # Imported here: only jobs with a pipeline need the library.
    from herringbone_parallel.torch.model_parallel import api, state

    parameters = {"partitions": RANKS, "microbatches": microbatches, "ddp": True}
    parameters |= {"auto_partition": False, "default_partition": 0}
    os.environ.update(
        {
            RankVariable.RANK: str(rank),
            RankVariable.LOCAL_RANK: str(rank),
            RankVariable.WORLD_SIZE: str(RANKS),
            RankVariable.LOCAL_WORLD_SIZE: str(RANKS),
            _PARAMETERS: json.dumps(parameters),
        }
    )
    state.init()
    try:
        module = _Model(len(case.ranks), case.operations)
        for layer, owner in zip(module.layers, case.ranks, strict=True):
            api.set_partition(layer, owner)
        model = api.DistributedModel(module)

        @api.step
        def train(batch: torch.Tensor) -> Any:
            loss = model(batch).sum()
            model.backward(loss)
            return loss

        return _seconds(lambda: train(inputs))
    finally:
        state.shutdown()


def _seconds(call: Callable[[], object]) -> float:
    seconds = []
    for number in range(_WARM_UP + _REPEATS):
        start = time.process_time()
        call()
        if number >= _WARM_UP:
            seconds.append(time.process_time() - start)
    return median(seconds)
