"""Delayed parameters get their values after the partition: the same for any number of partitions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.init import constant_, trunc_normal_

from tests.parallel.torch.ranks import RankFailedError, Ranks

DELAYED = {"partitions": 2, "microbatches": 2}
BY_HAND = {"auto_partition": False, "default_partition": 0}


class Net(nn.Module):
    """Initialised in most of the ways that models use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.start = nn.Parameter(torch.zeros(1, 8))
        trunc_normal_(self.start, std=0.02)
        self.computed = nn.Parameter(torch.randn(8) * 0.02)
        orthogonal = torch.empty(8, 8)
        nn.init.orthogonal_(orthogonal)
        self.orthogonal = nn.Parameter(orthogonal)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.LSTM(8, 8, batch_first=True)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(8, dtype=torch.float32, device=self.body.weight.device))
        self.apply(self.fill)
        constant_(self.body.bias, 3.0)
        self.body.weight.data[1].fill_(7.0)

    @staticmethod
    def fill(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0.0, 0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words) + self.start + self.computed + self.table
        x, _ = self.attention(x, x, x, need_weights=False)
        x, _ = self.inner(self.norm(x.transpose(1, 2)).transpose(1, 2) @ self.orthogonal)
        return self.head(self.body(x))


def train(split: bool) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    with smp.delay_param_initialization():
        net = Net()
    waiting = {name for name, parameter in net.named_parameters() if parameter.is_meta}
    if split:
        smp.set_partition(net.body, 1)
        smp.set_partition(net.inner, smp.pp_size() - 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(words: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        model.backward(loss)
        return loss

    words = torch.randint(0, 10, (4, 5), generator=torch.Generator().manual_seed(1))
    losses, first = [], {}
    for step in range(3):
        optimizer.zero_grad()
        losses.append(train_step(words).reduce_mean().item())
        if step == 0:
            first = {name: parameter.detach().clone() for name, parameter in model.local_named_parameters()}
        optimizer.step()
    return waiting, first, losses


@pytest.mark.parametrize(("partitions", "split"), [(2, True), (3, True), (2, False)])
def test_values_do_not_depend_on_the_number_of_partitions(ranks: Ranks, partitions: int, split: bool) -> None:
    ((waiting, alone, losses),) = ranks.run(train, {"partitions": 1, "microbatches": 2}, False)
    assert set(alone) - waiting == {"computed", "orthogonal"}, (
        "parameters computed from other tensors have values at once"
    )
    assert torch.equal(alone["body.bias"], torch.full((8,), 3.0))
    assert torch.equal(alone["body.weight"][1], torch.full((8,), 7.0))
    assert torch.equal(alone["norm.weight"], torch.ones(8))
    assert 0 < alone["start"].abs().max() < 0.1
    assert alone["embed.weight"].std() < 0.05, "the head fills the shared weight last"
    by_hand = BY_HAND if split else {}
    by_rank = ranks.run(train, {"partitions": partitions, "microbatches": 2, **by_hand}, split)
    assert sorted(name for _, held, _ in by_rank for name in held) == sorted(alone)
    for rank_waiting, held, rank_losses in by_rank:
        assert rank_waiting == waiting
        assert rank_losses == pytest.approx(losses, abs=1e-6)
        for name, value in held.items():
            torch.testing.assert_close(value, alone[name], atol=0, rtol=0, msg=name)


def reads_values() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    with smp.delay_param_initialization():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight.data.copy_(first.weight)


def saves_early() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    with smp.delay_param_initialization():
        model = smp.DistributedModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    model.state_dict()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (reads_values, "copy_ needs the values of a parameter inside smp.delay_param_initialization"),
        (saves_early, r"state_dict\(\) before the first step"),
    ],
)
def test_reading_a_value_before_it_exists_is_refused(ranks: Ranks, wrong: Any, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(wrong, dict(DELAYED))


def loads_early() -> tuple[bool, torch.Tensor]:
    import herringbone_parallel.torch.model_parallel.api as smp

    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict()
    with smp.model_creation():
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    waiting = net[0].weight.is_meta
    model = smp.DistributedModel(net)
    model.load_state_dict(whole)
    smp.step(lambda inputs: model(inputs))(torch.zeros(2, 2))
    return waiting, all(torch.equal(value, whole[name]) for name, value in model.local_named_parameters())


def test_a_setting_delays_what_model_creation_makes_and_a_checkpoint_loaded_before_wins(ranks: Ranks) -> None:
    by_rank = ranks.run(loads_early, {**DELAYED, "delayed_parameter_initialization": True})
    assert by_rank == [(True, True)] * 2


def made_outside() -> list[str]:
    import herringbone_parallel.torch.model_parallel.api as smp

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        smp.DistributedModel(nn.Linear(2, 2))
    return [str(warning.message) for warning in caught]


def test_a_setting_without_effect_gives_a_warning(ranks: Ranks) -> None:
    (warned,) = ranks.run(made_outside, {"partitions": 1, "delayed_parameter_initialization": True})
    assert warned == [
        "delayed_parameter_initialization has no effect: the model was made outside of smp.model_creation()"
    ]
