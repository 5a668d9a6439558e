"""`shard` of modules with buffers: made late on the meta device, or in 32 bits among parameters of 16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.sharding.releases import HAS_SHARD, needs_shard


class Tables(nn.Module):
    """A module without parameters, and one with buffers of its own, both on the meta device."""

    def __init__(self, resets: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Module()
        self.table.register_buffer("steps", torch.arange(4.0), persistent=False)
        if resets:
            self.table.reset_parameters = lambda: self.table.steps.copy_(torch.arange(4.0))


def buffers_made_late() -> dict[str, list[float]]:
    from herringbone_parallel.torch.sharding import api as tsm

    with torch.device("meta"):
        models = [Tables(resets) for resets in (True, False, True, True)]
    model = tsm.shard(models[0])
    with pytest.raises(ParallelError, match=r"the buffers steps of table \(Module\).*: it has no reset_parameters"):
        tsm.shard(models[1])
    models[2].table.reset_parameters = lambda: None
    with pytest.raises(ParallelError, match=r"the buffers steps of table .*: its initialiser does not set them"):
        tsm.shard(models[2])
    models[3].norm.weight, models[3].norm.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    with pytest.raises(ParallelError, match=r"the buffers running_mean, .* of norm .* have their values already"):
        tsm.shard(models[3])
    return {name: buffer.tolist() for name, buffer in model.named_buffers()}


@needs_shard
def test_buffers_on_the_meta_device_get_values_or_are_named(ranks: Ranks) -> None:
    assert ranks.shard(buffers_made_late, 2, {"hybrid_shard_degree": 2})[1] == {
        "norm.running_mean": [0.0] * 4,
        "norm.running_var": [1.0] * 4,
        "norm.num_batches_tracked": 0,
        "table.steps": [0.0, 1.0, 2.0, 3.0],
    }


class Convolutions(nn.Module):
    """Two blocks with statistics, norms with and without them, and a frozen parameter without elements; a table."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(2)
        )
        self.instances = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.plain = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
        self.nothing = nn.Parameter(torch.empty(0, 4), requires_grad=False)
        # Added in 32 bits, in front of layers that take one type.
        self.register_buffer("table", torch.linspace(0, 1, 16))
        self.last = nn.ModuleList([nn.LayerNorm(16), nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1), nn.Linear(16, 16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.plain(self.instances(x)) + self.nothing.sum()
        for layer in self.last:
            x = layer(x + self.table)
        return x


def norms_in_16_bits() -> tuple[set[torch.dtype], float]:
    from herringbone_parallel.torch.sharding import api as tsm

    torch.manual_seed(0)
    alone = Convolutions()
    torch.manual_seed(0)
    model = Convolutions()
    model.nothing.requires_grad_(True)
    with pytest.raises(ParallelError, match="the parameter nothing has no elements"):
        tsm.shard(model)
    model.nothing.requires_grad_(False)
    model = tsm.shard(model, mixed_precision=torch.bfloat16)
    batch = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(1))
    for module in (alone, model):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            module(batch).float().pow(4).mean().backward()
            optimizer.step()
    statistics = dict(model.named_buffers())
    floats = {name: buffer for name, buffer in alone.named_buffers() if buffer.is_floating_point()}
    return (
        {statistics[name].dtype for name in floats},
        max((statistics[name] - buffer).abs().max().item() for name, buffer in floats.items()),
    )


def refused_by_shard() -> str:
    from herringbone_parallel.torch.sharding import api as tsm

    with pytest.raises(ParallelError) as error:
        tsm.shard(nn.Linear(4, 4))
    return str(error.value).partition(":")[0]


@pytest.mark.skipif(HAS_SHARD, reason="torch is new enough")
def test_shard_refuses_an_old_torch(ranks: Ranks) -> None:
    assert (
        ranks.shard(refused_by_shard, 2, {"hybrid_shard_degree": 2})
        == [f"shard needs torch 2.13 or newer, and this rank has torch {torch.__version__}"] * 2
    )


@needs_shard
def test_norms_with_statistics_train_in_16_bits_with_statistics_of_32(ranks: Ranks) -> None:
    types, error = ranks.shard(norms_in_16_bits, 2, {"hybrid_shard_degree": 2})[0]
    assert types == {torch.float32}
    assert error < 0.01
