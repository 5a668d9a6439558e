"""Time the work of the pipeline's runtime, in two processes.

    work = pipeline_work(rank, folder)          # in both processes; `folder` is where they meet
    work.step_s, work.microbatch_s, work.module_s

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
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.constants import RankVariable
from herringbone_parallel.core.prediction.measurement import PipelineWork

RANKS = 2
_PARAMETERS = "SM_HP_MP_PARAMETERS"
_WIDTH, _SAMPLES = 8, 2
_FEW_LAYERS, _MANY_LAYERS = 4, 16
_FEW, _MANY = 1, 5
_WARM_UP, _REPEATS = 3, 12


def pipeline_work(rank: int, folder: Path) -> PipelineWork:
    """Return the processor seconds of this rank; ranks 0 and 1 call it, with the same folder and without a group."""
    few = _added(rank, _FEW_LAYERS, _FEW, folder / "few")
    many = _added(rank, _FEW_LAYERS, _MANY, folder / "many")
    return solved(few, many, _added(rank, _MANY_LAYERS, _MANY, folder / "layered"))


def solved(few: float, many: float, layered: float) -> PipelineWork:
    """Return the parts of what a pipeline adds to steps of few microbatches, of many, and of many with more layers.

    >>> solved(few=5.0 + 1 * (2.0 + 4 * 0.5), many=5.0 + 5 * (2.0 + 4 * 0.5), layered=5.0 + 5 * (2.0 + 16 * 0.5))
    PipelineWork(step_s=5.0, microbatch_s=2.0, module_s=0.5)
    """
    module_s = max(0.0, (layered - many) / _MANY / (_MANY_LAYERS - _FEW_LAYERS))
    whole_s = max(0.0, (many - few) / (_MANY - _FEW))
    return PipelineWork(
        step_s=max(0.0, few - _FEW * whole_s),
        microbatch_s=max(0.0, whole_s - _FEW_LAYERS * module_s),
        module_s=module_s,
    )


def _added(rank: int, layers: int, microbatches: int, store: Path) -> float:
    """Return the seconds of a step of the pipeline, less those of the rank's layers alone."""
    alone = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers // RANKS)))
    # The same on both ranks: a step compares its arguments.
    inputs = torch.ones(_SAMPLES * microbatches, _WIDTH)

    def plain() -> None:
        for part in torch.split(inputs, _SAMPLES):
            alone(part).sum().backward()

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    return _pipeline_s(rank, layers, microbatches, inputs) - _seconds(plain)


def _pipeline_s(rank: int, layers: int, microbatches: int, inputs: torch.Tensor) -> float:
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
        module = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)))
        for layer in list(module)[layers // RANKS :]:
            api.set_partition(layer, 1)
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
