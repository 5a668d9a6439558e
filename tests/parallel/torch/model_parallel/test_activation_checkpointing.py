"""Checkpointed activations: the same gradients and dropout, fewer saved tensors, forwards run twice."""

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
    def __init__(self, how: str, dropout: float) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.Sequential(*(Layer(dropout) for _ in range(6)))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import herringbone_parallel.torch.model_parallel.api as smp
        from herringbone_parallel.torch.model_parallel.activation_checkpointing import checkpoint

        if self.how == "one by one":
            for layer in self.layers:
                x = checkpoint(layer, x)
        elif self.how == "whole":
            x = checkpoint(self.layers, x)
        elif self.how == "torch's own":
            x = torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)
        elif self.how.startswith("sequential "):
            x = smp.checkpoint_sequential(self.layers, x, strategy=self.how.split()[1])
        else:
            x = self.layers(x)
        return self.head(x)


def train(how: str, dropout: float) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    net = Net(how, dropout)
    inputs = torch.randn(8, 8)
    model = smp.DistributedModel(net)
    if how.startswith("set "):
        smp.set_activation_checkpointing(net.layers, strategy=how.split()[1])
    if how == "model":
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
    # A trace would see less memory where activations are checkpointed, and split elsewhere.
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
    "how",
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
    ranks: Ranks, plain: dict[tuple[int, float], Any], partitions: int, how: str
) -> None:
    # Layers that make one call together draw from one seed: over ranks, other masks than alone.
    dropout = 0.0 if partitions > 1 and ("contiguous" in how or "group" in how) else 0.3
    found = ranks.run(train, _settings(partitions), how, dropout)
    expected = plain[partitions, dropout]
    forwards = 6 * MICROBATCHES * 2
    assert sum(calls for *_, calls in expected) == forwards
    assert sum(calls for *_, calls in found) == 2 * forwards
    for (losses, gradients, saved, _), (plain_losses, plain_gradients, plain_saved, _) in zip(
        found, expected, strict=True
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
def test_a_strategy_that_means_nothing_is_named(ranks: Ranks, strategy: str, sequential: bool, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(refuse, {"partitions": 1, "microbatches": 1}, strategy, sequential)
