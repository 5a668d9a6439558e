"""Memory: parameters, gradients and optimizer states of a rank are its ideal share of one process's, to 3 percent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.sharding.cells import LAYOUTS

WIDTH = 64
# Layout -> the number of ranks over which one copy of the training state is divided.
SHARES = {"shard 2": 2, "shard 4": 4, "hybrid 2x2": 2, "tensor 2": 2, "tensor 2 x shard 2": 4, "context 2": 2}


def layers() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def bytes_of_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes that this rank's part of the training state takes, padding included."""
    storages = {}
    for tensor in _tensors(module, optimizer):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for parameter in module.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def measure(shared: bool) -> int:
    module = layers()
    if shared:
        from herringbone_parallel.torch.sharding.transform import shard

        module = shard(module)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 8, WIDTH)).square().sum().backward()
    optimizer.step()
    return bytes_of_state(module, optimizer)


@pytest.mark.parametrize("layout", SHARES)
def test_a_rank_has_its_share_of_the_training_state(ranks: Ranks, layout: str) -> None:
    ideal = measure(False) / SHARES[layout]
    for bytes_of_rank in ranks.shard(measure, LAYOUTS[layout].ranks, dict(LAYOUTS[layout].parameters), True):
        assert bytes_of_rank <= 1.03 * ideal, f"{bytes_of_rank / ideal:.4f} of the ideal share"
