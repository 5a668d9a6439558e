"""A rank that dies without a report: the other ranks notice it within seconds, in every phase of a step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.replicas.replicas import job_store
from tests.parallel.torch.ranks import RankFailedError, Ranks

THREE = {"partitions": 3, "microbatches": 4}
# 5 seconds are promised; a busy machine may take longer.
PROMISED_SECONDS = 10


class _DieBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        os._exit(9)


class Mortal(nn.Linear):
    """The module of rank 1."""

    when = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.when == "forward":
            os._exit(9)
        return _DieBackward.apply(super().forward(x)) if self.when == "backward" else super().forward(x)


def repeat(action: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        action()


def lose_rank_1(when: str) -> None:
    """Die as rank 1. On the other ranks, expect a failed step in time, and raise LookupError as a sign of that."""
    import herringbone_parallel.torch.model_parallel.api as smp

    mortal = Mortal(6, 6)
    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), mortal, nn.Linear(6, 6)))

    @smp.step
    def train(inputs: torch.Tensor, ends: bool) -> Any:
        loss = model(inputs).sum()
        model.backward(loss)
        if ends and smp.rank() == 1:
            os._exit(9)
        return loss

    inputs = torch.ones(8, 6)
    train(inputs, False)
    smp.barrier()
    mortal.when = when
    if when == "between steps":
        # A connection that closes while others still wait for its messages may lose them.
        store = job_store()
        if smp.rank() == 1:
            store.wait(["passed/0", "passed/2"])
            os._exit(9)
        store.set(f"passed/{smp.rank()}", "")
    start = time.monotonic()
    with pytest.raises(ParallelError, match="lost contact with pipeline rank 1"):
        repeat(lambda: train(inputs, when == "end of the step function"), 3)
    assert time.monotonic() - start < PROMISED_SECONDS
    raise LookupError("as it should be")


@pytest.mark.parametrize("when", ["forward", "backward", "end of the step function", "between steps"])
def test_the_others_end_with_an_error(when: str) -> None:
    ranks = Ranks()
    with pytest.raises(RankFailedError) as caught:
        ranks.run(lose_rank_1, dict(THREE), when)
    ranks.close()
    assert str(caught.value).count("LookupError: as it should be") == 2
    assert "rank 1:\ndied" in str(caught.value)
