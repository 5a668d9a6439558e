"""A failure in one replica reaches all replicas within seconds, with the rank that failed."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from tests.parallel.torch.ranks import RankFailedError, Ranks

FOUR = {"partitions": 2, "replicas": 2, "ddp": True}


def part(way: str) -> None:
    """Train on every rank; rank 3 leaves in the third step, in the given way."""
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel.failures import PeerFailedError

    class Last(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Last.calls += 1
            if smp.rank() == 3 and Last.calls > 4:
                if way == "dies":
                    os._exit(9)
                if way == "raises":
                    raise ZeroDivisionError("boom in the last layer")
            return super().forward(x)

    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Last(6, 1)))

    @smp.step
    def train_step(inputs: torch.Tensor) -> None:
        model.backward(model(inputs).mean())

    for step in range(4):
        if way == "ends" and step == 2 and smp.dp_rank() == 1:
            return
        began = time.monotonic()
        try:
            train_step(torch.randn(4, 6))
        except PeerFailedError:
            assert time.monotonic() - began < 5
            with pytest.raises(PeerFailedError, match="an earlier step failed"):
                train_step(torch.randn(4, 6))
            raise


def test_a_failure_in_one_replica_is_named_in_all(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(part, {**FOUR, "microbatches": 2}, "raises")
    report = (
        "PeerFailedError: another replica failed: rank 3, of the replica on ranks [2, 3]:"
        " ZeroDivisionError: boom in the last layer (in module 2)"
    )
    for rank, text in enumerate(str(caught.value).split("\nrank ")):
        assert (report if rank < 2 else "boom in the last layer") in text


def test_a_replica_that_dies_is_named_in_the_others() -> None:
    """A broken connection does not name the dead rank; the other rank of its pipeline knows and reports it."""
    pool = Ranks()
    with pytest.raises(RankFailedError) as caught:
        pool.run(part, {**FOUR, "microbatches": 2}, "dies")
    text = str(caught.value)
    assert "rank 3:\ndied" in text
    assert (
        text.count("of the replica on ranks [2, 3]: PeerFailedError: lost contact with pipeline rank 1 (rank 3)") == 2
    )


def test_the_dead_one_of_several_replicas_is_named() -> None:
    """With one partition no pipeline misses it: the only rank that does not confirm that it is alive is named."""
    pool = Ranks()
    with pytest.raises(RankFailedError) as caught:
        pool.run(part, {"partitions": 1, "replicas": 4, "ddp": True, "microbatches": 2}, "dies")
    text = str(caught.value)
    assert "rank 3:\ndied" in text
    assert "PeerFailedError: the all-reduce with rank 3 broke" in text


def test_a_replica_that_makes_fewer_steps_is_named_and_not_waited_for(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(part, {**FOUR, "microbatches": 2}, "ends")
    text = str(caught.value)
    for rank in (0, 1):
        assert f"rank {rank + 2} has ended while rank {rank} waits for its gradients" in text
