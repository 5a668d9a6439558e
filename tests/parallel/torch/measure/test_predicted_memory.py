"""Predicted memory next to the bytes that torch's allocator gives out on real ranks, within 5 percent.

`benchmarks/plan` compares shards and pipelines as well: the profiler does not see what their threads free.
"""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.memory import MemoryModel
from tests.parallel.torch.measure.scripts import Words, measured
from tests.parallel.torch.ranks import Ranks

MARK = "a step begins"
LAYOUTS = {
    "one": Layout(),
    "replicas": Layout(mesh=Mesh(replicate=2), library=Library.DDP),
}


def train(way: str) -> None:
    """Train for three steps in one of the ways."""
    model: nn.Module = Words(width=128)
    if way == "replicas":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        # The last mark begins a step of which everything is there, such as states.
        with record_function(MARK):
            tokens = torch.randint(0, 1000, (2, 16))
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def real_peak(way: str) -> int:
    """Return the most bytes that torch's allocator has given out in the last step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(way)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())  # type: ignore[union-attr]
    live, peak = 0, 0
    for event in events:
        if event.name() == MARK:
            peak = live
        elif event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def real_peaks(ways: list[str]) -> list[int]:
    peaks = []
    for way in ways:
        # A model and its hooks are a cycle; the next one's bytes must not lack those that it frees.
        gc.collect()
        peaks.append(real_peak(way))
    return peaks


def test_predictions_are_near_real_ranks(ranks: Ranks) -> None:
    model = MemoryModel(measured(partial(train, "one")))
    peaks = zip(*ranks.shard(real_peaks, 2, {"hybrid_shard_degree": 0}, list(LAYOUTS)), strict=True)
    for (way, layout), of_ranks in zip(LAYOUTS.items(), peaks, strict=True):
        assert model.memory(layout)[0].peak == pytest.approx(max(of_ranks), rel=0.05), way
