"""`pipeline: "zero_bubble"`: several modules in one graph that has to be cut, and the order of the phases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel.replicas import test_replicas as replicas
from tests.parallel.torch.ranks import Ranks


@pytest.mark.parametrize("name", ["Chain", "Tied"])
def test_replicas_reduce_gradients_that_were_put_off(ranks: Ranks, name: str) -> None:
    parameters = {**replicas.FOUR, "microbatches": 4, "pipeline": "zero_bubble"}
    by_rank = ranks.run(replicas.train, parameters, name, torch.float64, {})
    replicas.assert_equal(by_rank, replicas.train_alone(name, torch.float64, 8), 1e-12)


def phases() -> list[tuple[str, int]]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state
    from herringbone_parallel.torch.model_parallel.runtime.phases import Phase

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    noted: list[tuple[str, int]] = []
    names = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}

    class Notes:
        """Takes the place of the timeline."""

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
            last = {phase: position for position, (phase, of) in enumerate(noted) if of == index}
            assert last["F"] < last["B"] < last["W"]
        begun, ended = set(), set()
        for phase, index in noted:
            begun.add(index)
            if phase == "W":
                ended.add(index)
            assert len(begun - ended) <= 3, "no more live than active_microbatches"
