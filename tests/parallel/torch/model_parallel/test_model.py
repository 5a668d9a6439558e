"""`DistributedModel`: partitions by hand and automatic ones, and state dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

BY_HAND = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}


def by_hand(partition_of_head: int) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 8)
            with smp.partition(partition_of_head):
                self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    model = smp.DistributedModel(Net())
    assert not model.partitioned
    smp.step(lambda inputs: model(inputs))(torch.randn(4, 6))
    assert model.partitioned
    return model.assigned, [name for name, _ in model.local_named_parameters()]


def test_partitions_by_hand_are_kept(ranks: Ranks) -> None:
    first, second = ranks.run(by_hand, dict(BY_HAND), 1)
    assert first == ({"body": 0, "head.0": 1, "head.2": 1}, ["body.weight", "body.bias"])
    assert second[1] == ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"]


def test_an_automatic_partition_ignores_partitions_by_hand(ranks: Ranks) -> None:
    first, _ = ranks.run(by_hand, {"partitions": 2, "microbatches": 2}, 0)
    assert set(first[0].values()) == {0, 1}


@pytest.mark.parametrize(
    ("index", "message"),
    [(0, "no module with parameters is on partition 1"), (2, "module 'head' is put on partition 2; there are 2")],
)
def test_a_partition_that_is_empty_or_does_not_exist_is_refused(ranks: Ranks, index: int, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(by_hand, dict(BY_HAND), index)


def save_and_load(folder: str) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Tied")
    model = smp.DistributedModel(module)
    evaluate = smp.step(lambda inputs: model(inputs))
    with torch.no_grad():
        before = evaluate(inputs).concat()
        whole = model.state_dict()
        smp.save(whole, f"{folder}/model.pt", partial=False)
        smp.save(model.local_state_dict(), f"{folder}/part.pt")
        for parameter in model.local_parameters():
            parameter.zero_()
        assert not torch.equal(evaluate(inputs).concat(), before)
        model.load_state_dict(whole)
        after = evaluate(inputs).concat()
    smp.barrier()
    return torch.equal(before, after), before


def test_a_full_state_dict_loads_without_the_library(ranks: Ranks, tmp_path: Path) -> None:
    by_rank = ranks.run(save_and_load, {"partitions": 2, "microbatches": 2}, str(tmp_path))
    module, inputs, _ = models.build("Tied")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(saved) == list(module.state_dict())
    module.load_state_dict(saved)
    for restored, before in by_rank:
        assert restored
        torch.testing.assert_close(before, module(inputs).detach())
    parts = [torch.load(tmp_path / f"part.pt_{rank}", weights_only=True) for rank in range(2)]
    assert all(part.pop("_smp_is_partial") for part in parts)
    assert sorted([*parts[0], *parts[1]]) == sorted(saved), "every entry is in exactly one part"
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt", "part.pt_0", "part.pt_1"}


def wrong_state_dict() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    smp.step(lambda inputs: model(inputs))(inputs)
    model.load_state_dict({"other": torch.zeros(1)})


def test_a_state_dict_of_another_model_is_refused(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=r"the state dict is of another model: missing .*unexpected"):
        ranks.run(wrong_state_dict, {"partitions": 2, "microbatches": 2})


def scheduled() -> list[float]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    @smp.step
    def train_step(inputs: torch.Tensor) -> None:
        model.backward(model(inputs).sum())

    rates = []
    for _ in range(3):
        optimizer.zero_grad()
        assert train_step(inputs) is None
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert all(not parameter.is_meta for group in optimizer.param_groups for parameter in group["params"])
    return rates


def test_learning_rate_schedulers_take_the_distributed_optimizer(ranks: Ranks) -> None:
    assert ranks.run(scheduled, {"partitions": 2, "microbatches": 4}) == [[0.5, 0.25, 0.125]] * 2
