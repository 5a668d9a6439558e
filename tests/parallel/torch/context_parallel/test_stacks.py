from __future__ import annotations

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.context_parallel.enable import enable
from herringbone_parallel.torch.context_parallel.stacks import find_stacks
from tests.parallel.torch.sharding.models import MODELS


@pytest.mark.parametrize(
    ("model", "stacks"),
    [
        ("encoder", ["layers.layers"]),
        ("encoder-decoder", ["encoder.layers", "decoder.layers"]),
        ("grouped", ["layers"]),
        ("vit", ["layers.layers"]),
    ],
)
def test_the_stacks_of_a_model_are_found(model: str, stacks: list[str]) -> None:
    found = find_stacks(MODELS[model].build(torch.float32)[0])
    assert [(stack.name, len(stack.layers), stack.dim) for stack in found] == [(name, 2, 1) for name in stacks]


def test_layers_of_torch_that_take_the_sequence_first_are_noticed() -> None:
    [stack] = find_stacks(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2, enable_nested_tensor=False))
    assert stack.dim == 0


class Layer(nn.Module):
    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.extra = extra


class RotaryEmbedding(nn.Module):
    pass


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (nn.Conv1d(4, 4, 3), r"layer layers\.0\.extra \(Conv1d\) reads other positions than its own"),
        (nn.BatchNorm1d(4), r"\(BatchNorm1d\) reads other positions"),
        (RotaryEmbedding(), r"\(RotaryEmbedding\) makes positions from the length of its input"),
        (nn.ModuleDict({"relative_attention_bias": nn.Embedding(4, 2)}), "relative_attention_bias"),
    ],
)
def test_layers_that_read_other_positions_are_refused(extra: nn.Module, message: str) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([Layer(extra), Layer(extra)])})
    with pytest.raises(ParallelError, match=message):
        find_stacks(model)


def test_a_model_without_layers_with_attention_is_refused() -> None:
    with pytest.raises(ParallelError, match="ResNet has no stack of layers with attention"):
        find_stacks(MODELS["resnet"].build(torch.float32)[0])


def test_an_unknown_exchange_is_refused() -> None:
    with pytest.raises(ParallelError, match="cp_comm_type must be one of p2p, all_gather, not 'ring'"):
        enable(nn.Linear(2, 2), None, comm="ring")


def test_one_rank_shares_nothing() -> None:
    model = nn.Linear(2, 2)
    assert enable(model, None) is model
