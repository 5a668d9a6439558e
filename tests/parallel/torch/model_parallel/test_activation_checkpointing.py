"""Activation checkpointing: the same gradients and dropout, fewer saved tensors, every forward runs twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from tests.parallel.torch.ranks import RankFailedError, Ranks

MICROBATCHES = 2
PLAIN = "plain"


class Layer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.dropout(torch.tanh(self.linear(x)).exp())


class Net(nn.Module):
    def __init__(self, mode: str, dropout: float) -> None:
        super().__init__()
        self.mode = mode
        self.layers = nn.Sequential(*(Layer(dropout) for _ in range(6)))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import herringbone_parallel.torch.model_parallel.api as smp
        from herringbone_parallel.torch.model_parallel.activation_checkpointing import checkpoint

        if self.mode == "one by one":
            for layer in self.layers:
                x = checkpoint(layer, x)
        elif self.mode == "whole":
            x = checkpoint(self.layers, x)
        elif self.mode == "torch's own":
            x = torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)
        elif self.mode.startswith("sequential "):
            x = smp.checkpoint_sequential(self.layers, x, strategy=self.mode.split()[1])
        else:
            x = self.layers(x)
        return self.head(x)


def train(mode: str, dropout: float) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    net = Net(mode, dropout)
    inputs = torch.randn(8, 8)
    model = smp.DistributedModel(net)
    if mode.startswith("set "):
        smp.set_activation_checkpointing(net.layers, strategy=mode.split()[1])
    if mode == "model":
        smp.set_activation_checkpointing(net)
    saved = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    @smp.step
    def train_step(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model(inputs).square().mean()
        model.backward(loss)
        return loss

    losses = [train_step(inputs).reduce_mean().item() for _ in range(2)]
    gradients = {name: parameter.grad for name, parameter in model.local_named_parameters()}
    return losses, gradients, sum(saved), sum(layer.calls for layer in net.layers)


def _settings(partitions: int) -> dict[str, Any]:
    # Without a trace: it would measure less memory for checkpointed modules, and split the model elsewhere.
    return {"partitions": partitions, "microbatches": MICROBATCHES, "skip_tracing": True}


@pytest.fixture(scope="module")
def plain(ranks: Ranks) -> dict[tuple[int, float], Any]:
    return {
        (count, dropout): ranks.run(train, _settings(count), PLAIN, dropout)
        for count in (1, 2)
        for dropout in (0.0, 0.3)
    }


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(
    "mode",
    [
        "set each",
        "set contiguous",
        "set group_2",
        "model",
        "one by one",
        "whole",
        "torch's own",
        "sequential each",
        "sequential contiguous",
        "sequential group_4",
    ],
)
def test_gradients_are_the_same_and_memory_is_less(
    ranks: Ranks, plain: dict[tuple[int, float], Any], partitions: int, mode: str
) -> None:
    # Layers in one unit draw from one seed, so over ranks their dropout masks differ from those of one process.
    dropout = 0.0 if partitions > 1 and ("contiguous" in mode or "group" in mode) else 0.3
    results = ranks.run(train, _settings(partitions), mode, dropout)
    expected = plain[partitions, dropout]
    forwards = 6 * MICROBATCHES * 2
    assert sum(calls for *_, calls in expected) == forwards
    assert sum(calls for *_, calls in results) == 2 * forwards
    for (losses, gradients, saved, _), (plain_losses, plain_gradients, plain_saved, _) in zip(
        results, expected, strict=True
    ):
        assert saved < plain_saved / 2
        assert gradients.keys() == plain_gradients.keys()
        assert losses == pytest.approx(plain_losses, abs=1e-6)
        for name, gradient in plain_gradients.items():
            torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=0, msg=name)


def refuse(strategy: str, sequential: bool) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module = nn.Sequential(nn.Linear(2, 2)) if sequential else nn.Linear(2, 2)
    smp.set_activation_checkpointing(module, strategy=strategy)


@pytest.mark.parametrize(
    ("strategy", "sequential", "message"),
    [
        ("group_0", True, "no checkpointing strategy 'group_0'; there are each, contiguous, group_N"),
        ("contiguous", False, "strategy='contiguous' is for an nn.Sequential, not for a Linear"),
    ],
)
def test_an_unknown_strategy_is_refused(ranks: Ranks, strategy: str, sequential: bool, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(refuse, {"partitions": 1, "microbatches": 1}, strategy, sequential)
