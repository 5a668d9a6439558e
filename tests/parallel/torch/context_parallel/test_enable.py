"""Context parallelism on ranks: exchanges, checkpoints, batches of several lengths, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.sharding.models import MODELS, WIDTH, GroupedLayer, Text, text

Loss = Callable[[nn.Module], torch.Tensor]


def _enable(model: nn.Module, **options: Any) -> nn.Module:
    from herringbone_parallel.torch.context_parallel.enable import enable
    from herringbone_parallel.torch.sharding import state

    return enable(model, state.get().mesh.context, **options)


def _gradients_differ(model: nn.Module, loss: Loss, *, checkpoint: bool = False, **options: Any) -> float:
    """Return the largest difference of loss and gradients with and without context parallelism."""
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    loss_alone = loss(model)
    loss_alone.backward()
    alone = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    _enable(model, **options)
    if checkpoint:
        apply_activation_checkpointing(model, check_fn=lambda layer: isinstance(layer, GroupedLayer))
    shared = loss(model)
    shared.backward()
    difference = (shared - loss_alone).abs().item()
    for parameter, gradient in zip(model.parameters(), alone, strict=True):
        # As `fully_shard` does: the mean over the ranks.
        dist.all_reduce(parameter.grad)
        difference = max(difference, (parameter.grad / dist.get_world_size() - gradient).abs().max().item())
    return difference


def _exchanges(comm: str) -> float:
    model, batch = MODELS["grouped"].build(torch.float64)
    return _gradients_differ(model, lambda module: module(**batch), comm=comm)


@pytest.mark.parametrize("comm", ["p2p", "all_gather"])
def test_both_exchanges_give_the_gradients_of_one_process(ranks: Ranks, comm: str) -> None:
    assert max(ranks.shard(_exchanges, 3, {"context_parallel_degree": 3}, comm)) <= 1e-12


def _lengths_under_checkpoints() -> float:
    model, batch = MODELS["grouped"].build(torch.float64)
    short = {name: tensor[:, :7] for name, tensor in batch.items()}
    return _gradients_differ(model, lambda module: module(**batch) + module(**short), checkpoint=True)


def test_batches_of_two_lengths_are_recomputed_in_one_backward(ranks: Ranks) -> None:
    [first, second] = ranks.shard(_lengths_under_checkpoints, 2, {"context_parallel_degree": 2})
    assert max(first, second) <= 1e-12


class ByHand(nn.Module):
    """Attention without torch's kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = F.softmax(self.attention(hidden) @ hidden.transpose(1, 2), dim=-1)
        return scores @ hidden


class Stacked(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, *args: Any) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden, *args)
        return hidden


def _refusals() -> dict[str, str]:
    hidden = torch.zeros(2, 8, WIDTH)

    def by_hand() -> None:
        _enable(Stacked(ByHand(), ByHand()))(hidden)

    def too_short() -> None:
        batch = {name: tensor[:, :3] for name, tensor in text().items()}
        _enable(Text(causal=True))(**batch)

    def unclear() -> None:
        _enable(Stacked(GroupedLayer()))(hidden, None, torch.zeros(8, 8))

    def eager() -> None:
        model = Stacked(GroupedLayer())
        model.config = type("Config", (), {"_attn_implementation": "eager"})()
        _enable(model)

    refusals = {}
    for attempt in (by_hand, too_short, unclear, eager):
        try:
            attempt()
        except ParallelError as error:
            refusals[attempt.__name__] = str(error)
    return refusals


def test_what_ranks_cannot_share_is_refused_by_name(ranks: Ranks) -> None:
    for refusals in ranks.shard(_refusals, 2, {"context_parallel_degree": 2}):
        assert "a layer of layers called no scaled_dot_product_attention" in refusals["by_hand"]
        assert "3 positions is too short for 2 ranks" in refusals["too_short"]
        assert "argument *args of shape (8, 8) may be" in refusals["unclear"]
        assert "Stacked uses eager attention: build it with attn_implementation='sdpa'" in refusals["eager"]
