"""Units that are gathered when a module uses them: how many elements at a time, and uses that no hook announces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from herringbone_parallel.torch.model_parallel.shards.live import cut_modules
from tests.parallel.torch.ranks import RankFailedError, Ranks

WIDTH, LAYERS = 16, 6
LAYER = WIDTH * WIDTH + WIDTH
SETTINGS = {
    "partitions": 1,
    "replicas": 2,
    "ddp": True,
    "sharded_data_parallel_degree": 2,
    "sdp_param_persistence_threshold": 0,
    "sdp_gradient_clipping": 0,
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Deep(nn.Module):
    """Blocks of one size, called in a way that `kind` names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        if kind == "frozen":
            self.blocks[2].linear.weight.requires_grad_(False)

    def part(self, x: torch.Tensor, first: int, last: int) -> torch.Tensor:
        for block in self.blocks[first:last]:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "others":
            # The block's code runs without its call, and a weight is used outside of any block.
            x = self.blocks[0].forward(x)
            x = nn.functional.linear(self.part(x, 1, LAYERS), self.blocks[1].linear.weight)
        elif self.kind.startswith("checkpointed"):
            for first in range(0, LAYERS, 2):
                reentrant = self.kind == "checkpointed by reentry"
                x = torch.utils.checkpoint.checkpoint(self.part, x, first, first + 2, use_reentrant=reentrant)
        else:
            x = self.part(x, 0, LAYERS)
        return x


def data() -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(4)
    return Deep(kind).double()


def train(kinds: list[str]) -> list[Any]:
    """Train one model of each kind; the library has one model in a process, so each replaces the one before."""
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state

    results = []
    for kind in kinds:
        state.get().model = None
        model = smp.DistributedModel(model_of(kind))
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        if kind == "each checkpointed":
            for block in model.module.blocks:
                smp.set_activation_checkpointing(block)

        @smp.step
        def train_step(model: Any, x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            model.backward(loss)
            return loss

        x = data().chunk(2)[smp.rdp_rank()].requires_grad_()
        for _ in range(3):
            optimizer.zero_grad()
            train_step(model, x)
            optimizer.step()
        with torch.no_grad():
            train_step_without = smp.step(lambda model, x: model(x).square().mean())
            evaluated = train_step_without(model, x).reduce_mean()
        peak = model.shards.peak
        results.append((peak, sum(smp.allgather(evaluated.item(), smp.RDP_GROUP)) / 2, dict(model.state_dict())))
        model.reducer.retire()
    return results


KINDS = ["plain", "others", "frozen", "each checkpointed", "checkpointed", "checkpointed by reentry"]
# Two blocks at a time fit. Code outside of a block's call, and checkpoints of two blocks, hold more.
PEAKS = [2, 4, 3, 2, 3, 3]


def test_few_elements_are_gathered_at_a_time_and_results_are_those_of_one_process(ranks: Ranks) -> None:
    live = {"sdp_max_live_parameters": 2 * LAYER, "microbatches": 2}
    by_rank = ranks.run(train, {**SETTINGS, **live}, KINDS)
    for number, kind in enumerate(KINDS):
        module = model_of(kind)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            for part in data().chunk(4):
                (module(part.requires_grad_()).square().mean() / 4).backward()
            optimizer.step()
        expected = module(data().requires_grad_()).square().mean().item()
        for peak, evaluated, weights in (results[number] for results in by_rank):
            assert peak <= PEAKS[number] * LAYER, kind
            assert evaluated == pytest.approx(expected, abs=1e-10), kind
            for key, weight in module.state_dict().items():
                torch.testing.assert_close(weights[key], weight, atol=1e-10, rtol=0, msg=f"{kind}: {key}")


def fail_in_a_step() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(model_of("plain"))

    @smp.step
    def train_step(x: torch.Tensor) -> None:
        result = model(x)
        if smp.rank() == 1:
            raise ValueError("the data of rank 1 is wrong")
        model.backward(result.sum())

    train_step(data())


def test_a_failure_in_a_step_ends_it_on_all_ranks(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match="the data of rank 1 is wrong") as caught:
        ranks.run(fail_in_a_step, {**SETTINGS, "sdp_max_live_parameters": 2 * LAYER})
    assert "another replica failed: rank 1" in str(caught.value)


def test_a_parameter_belongs_to_the_module_around_all_that_use_it() -> None:
    module = nn.ModuleDict(
        {
            "one": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
            "two": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        }
    )
    module["one"][0].weight = module["one"][1].weight
    module["two"][1].bias = module["one"][1].bias
    names = {id(inner): path for path, inner in module.named_modules()}

    def runs(most: int) -> list[tuple[str, list[str]]]:
        cut = cut_modules(module, list(module.named_parameters()), most)
        return [(names[id(owner)], [name for name, _ in run]) for owner, run in cut]

    assert runs(1000) == [("", [name for name, _ in module.named_parameters()])]
    assert runs(40) == [
        ("", ["one.1.bias"]),
        ("one", ["one.0.weight", "one.0.bias"]),
        ("two", ["two.0.weight", "two.0.bias", "two.1.weight"]),
    ]
    assert runs(20) == [
        ("", ["one.1.bias"]),
        ("one", ["one.0.weight", "one.0.bias"]),
        ("two.0", ["two.0.weight", "two.0.bias"]),
        ("two.1", ["two.1.weight"]),
    ]
