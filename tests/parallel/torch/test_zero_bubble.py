"""`pipeline: "zero_bubble"`: every model of the proof, and what its timeline shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch import models
from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.test_equality import assert_equal, settings, train, train_alone


@pytest.mark.parametrize("name", models.ALL)
@pytest.mark.parametrize(("partitions", "split"), [(2, "contiguous"), (3, "scattered")])
def test_every_model_trains_as_in_one_process(ranks: Ranks, name: str, partitions: int, split: str) -> None:
    found = ranks.run(train, settings(partitions, 4, "zero_bubble", split), name, split, torch.float64)
    assert_equal(found, train_alone(name, 4, torch.float64), torch.float64)


def phases() -> list[tuple[str, int]]:
    import herringbone_parallel.torch as smp
    from herringbone_parallel.torch import baton, state

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    noted: list[tuple[str, int]] = []
    names = {baton.FORWARD: "F", baton.BACKWARD: "B", baton.WEIGHT: "W"}

    class Notes:
        """Stands where the timeline would."""

        def of_step(self, _: int) -> Any:
            return lambda phase, index, *_: noted.append((names[phase], index))

        def hand_in(self, _: Any) -> None: ...

    state.get().timeline = Notes()  # type: ignore[assignment]

    @smp.step
    def train_step(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).sum()
        model.backward(loss)
        return loss

    train_step(torch.ones(8, 6))
    return noted


def test_each_microbatch_ends_with_its_weights_in_their_order(ranks: Ranks) -> None:
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "zero_bubble", "active_microbatches": 3}
    for noted in ranks.run(phases, parameters):
        assert [index for phase, index in noted if phase == "W"] == [0, 1, 2, 3]
        for index in range(4):
            last = {phase: place for place, (phase, of) in enumerate(noted) if of == index}
            assert last["F"] < last["B"] < last["W"]
        begun, ended = set(), set()
        for phase, index in noted:
            begun.add(index)
            if phase == "W":
                ended.add(index)
            assert len(begun - ended) <= 3, "no more live than active_microbatches"
