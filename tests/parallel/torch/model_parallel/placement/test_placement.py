"""Parameters of other ranks, where a module lists its parameters a second time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.placement.placement import ForeignParameter, settle


class Listing(nn.Module):
    """Keeps a list of another module's parameters, next to other things."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.listed: list[object] = ["other", *of.parameters()]


def test_lists_of_foreign_parameters_follow_and_recurrent_layers_can_be_flattened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `settle` replaces it for the whole process.
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    mine, foreign, linear = nn.LSTM(2, 2), nn.LSTM(2, 2), nn.Linear(2, 2)
    listing = Listing(linear)
    own = list(mine.parameters())
    model = nn.Sequential(mine, foreign, linear, listing)
    settle(model, {"0": 0, "1": 1, "2": 1}, 0, torch.device("cpu"))
    other, weight, bias = listing.listed
    assert (other, weight is linear.weight, bias is linear.bias) == ("other", True, True)
    assert isinstance(weight, ForeignParameter)
    assert [parameter is listed for parameter, listed in zip(own, mine._flat_weights, strict=True)] == [True] * 4
    # As `flatten_parameters` of torch 2.2: it reads the data, unless a weight is no tensor.
    assert [listed.data for listed in foreign._flat_weights if isinstance(listed, torch.Tensor)] == []
    foreign.flatten_parameters()
