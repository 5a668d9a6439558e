"""Training as a user's script does, on ranks that share the training state and in one process."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models

STEPS = 5
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


class TinyTransformer(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens))).transpose(1, 2)


models.ALL["TinyTransformer"] = models.Case(TinyTransformer, models.case.tokens)


class Trained(NamedTuple):
    """The mean losses of all steps, and the whole tensors and optimizer states after the last one."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    states: dict[str, Any]


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    # Weights decay and biases do not, as scripts group them by their shape.
    decayed = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01)


def train(name: str, dtype: torch.dtype, options: dict[str, Any] | None = None) -> Trained:
    """Train as one rank; each replica takes its part of the batch."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name, dtype)
    inputs = inputs.chunk(smp.rdp_size())[smp.rdp_rank()]
    target = target.chunk(smp.rdp_size())[smp.rdp_rank()]
    model = smp.DistributedModel(module, **(options or {}))
    optimizer = smp.DistributedOptimizer(optimizer_of(model))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return models.ALL[name].step(model, model.backward, inputs, target)

    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = train_step(inputs, target).reduce_mean()
        losses.append(sum(smp.allgather(loss.item(), smp.RDP_GROUP)) / smp.rdp_size())
        optimizer.step()
    return Trained(losses, model.state_dict(), optimizer.state_dict())


@cache
def train_alone(name: str, dtype: torch.dtype, parts: int, most: float) -> Trained:
    module, inputs, target = models.build(name, dtype)
    optimizer = optimizer_of(module)

    def backward(tensors: Any, gradients: torch.Tensor | None = None) -> None:
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            start = torch.ones_like(tensor) if gradients is None else gradients
            tensor.backward(start / parts, retain_graph=True)

    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(0.0)
        for part, labels in zip(inputs.chunk(parts), target.chunk(parts), strict=True):
            losses[-1] += models.ALL[name].step(module, backward, part, labels).item() / parts
        if most:
            nn.utils.clip_grad_norm_(module.parameters(), most)
        optimizer.step()
    return Trained(losses, module.state_dict(), optimizer.state_dict())


def assert_equal(by_rank: list[Trained], expected: Trained, dtype: torch.dtype, *, buffers: bool = True) -> None:
    tolerance = TOLERANCE[dtype]
    for trained in by_rank:
        assert trained.losses == pytest.approx(expected.losses, abs=tolerance)
        assert list(trained.weights) == list(expected.weights)
        for key, weight in expected.weights.items():
            if buffers or not key.endswith(("running_mean", "running_var", "num_batches_tracked")):
                torch.testing.assert_close(trained.weights[key], weight, atol=tolerance, rtol=0, msg=key)
        assert set(trained.states["state"]) == set(expected.states["state"])
        for number, entry in expected.states["state"].items():
            for key, value in entry.items():
                torch.testing.assert_close(trained.states["state"][number][key], value, atol=tolerance, rtol=0)
    for one in by_rank:
        assert all(torch.equal(one.weights[key], by_rank[0].weights[key]) for key in expected.weights if buffers)
