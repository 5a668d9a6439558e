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
        self.listed = ["other", *of.parameters()]


def test_lists_of_foreign_parameters_follow_and_recurrent_layers_can_be_flattened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `settle` replaces it for the whole process.
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    model = nn.Sequential(nn.LSTM(2, 2), nn.LSTM(2, 2), nn.Linear(2, 2))
    model.append(Listing(model[2]))
    own = list(model[0].parameters())
    settle(model, {"0": 0, "1": 1, "2": 1}, 0, torch.device("cpu"))
    other, weight, bias = model[3].listed
    assert (other, weight is model[2].weight, bias is model[2].bias) == ("other", True, True)
    assert isinstance(weight, ForeignParameter)
    assert [mine is listed for mine, listed in zip(own, model[0]._flat_weights, strict=True)] == [True] * 4
    # As `flatten_parameters` of torch 2.2: it reads the data, unless a weight is no tensor.
    assert [listed.data for listed in model[1]._flat_weights if isinstance(listed, torch.Tensor)] == []
    model[1].flatten_parameters()
