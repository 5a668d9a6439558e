"""Hooks of modules: the ranks on which they are called, how often, and with what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks

BY_HAND = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}
WIDTH, STEPS = 4, 3


class Block(nn.Module):
    """Split over two ranks: its code runs on both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.between = nn.Tanh()
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.scale(x))


def doubled(_: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def hooked() -> Any:
    """Return the calls of the hooks by module, whether they had data, and the loss; and the refused backward hook."""
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor

    torch.manual_seed(2)
    net = Net()
    smp.set_partition(net.block.second, 1)
    calls: Counter[tuple[str, str]] = Counter()
    placed: dict[str, bool] = {}
    for path, module in net.named_modules():

        def before(_: nn.Module, args: Any, path: str = path) -> None:
            calls["before", path] += 1

        def after(_: nn.Module, args: Any, output: torch.Tensor, path: str = path) -> None:
            calls["after", path] += 1
            placed[path] = isinstance(output, PlacedTensor)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    for path in ("block.first", "block.second", "block.second.0"):
        net.get_submodule(path).register_full_backward_hook(lambda *_, path=path: calls.update([("backward", path)]))
    net.block.first.register_forward_hook(doubled)
    model = smp.DistributedModel(net)

    @smp.step
    def train(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).sum()
        model.backward(loss)
        return loss

    inputs = torch.randn(4, WIDTH)
    for _ in range(STEPS):
        loss = train(inputs).reduce_sum().item()
    refused = []
    for register in (net.block.register_full_backward_hook, net.block.register_full_backward_pre_hook):
        handle = register(lambda *_: None)
        with pytest.raises(ParallelError, match="a backward hook on a Block whose code runs on every rank"):
            train(inputs)
        handle.remove()
        refused.append(True)
    return calls, placed, loss, refused


def test_hooks_are_called_where_their_module_runs_once_for_each_microbatch(ranks: Ranks) -> None:
    torch.manual_seed(2)
    net = Net()
    net.block.first.register_forward_hook(doubled)
    alone = net(torch.randn(4, WIDTH)).sum().item()
    by_rank = ranks.run(hooked, dict(BY_HAND))
    everywhere = {"", "scale", "block"}
    of_rank = [{"block.first", "block.between"}, {"block.second", "block.second.0", "block.second.1"}]
    for rank, (calls, placed, loss, refused) in enumerate(by_rank):
        assert loss == pytest.approx(alone)
        assert refused == [True, True]
        forward = {path: count for (when, path), count in calls.items() if when == "after"}
        # Code of every rank names the counter, so a rank also knows what the other one has counted in a forward.
        assert set(forward) == everywhere.union(*of_rank)
        assert all(calls["after", path] == STEPS * 2 for path in of_rank[0] | of_rank[1])
        backward = {path for path in of_rank[rank] if calls["backward", path]}
        assert backward == of_rank[rank] - {"block.between", "block.second.1"}
        assert all(calls["backward", path] == STEPS * 2 for path in backward)
        assert {path for path, is_placed in placed.items() if is_placed} == {"", "block"}
