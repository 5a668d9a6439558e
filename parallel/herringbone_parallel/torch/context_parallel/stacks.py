"""Finds the stacks of layers whose sequence ranks can share, and refuses models whose layers cannot work that way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from herringbone_contract.errors import ParallelError

_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
# Layers with such a module make positions from the length of their own input, of which a rank has a part.
_POSITIONS = re.compile(r"rotary|rope|alibi|position|relative", re.IGNORECASE)
_NOT_POINTWISE = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.RNNBase,
)


class Stack(NamedTuple):
    """Layers that run one after the other on the same sequence; `dim` is the sequence's axis in hidden states."""

    name: str
    layers: list[nn.Module]
    dim: int


def find_stacks(model: nn.Module) -> list[Stack]:
    """Return the model's stacks of layers with attention: each outermost `ModuleList` or `Sequential` of one class.

    >>> [stack.name for stack in find_stacks(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2))]
    ['layers']

    Raises `ParallelError` for a model without such layers, and for layers that read other positions by more than
    attention.
    """
    containers = list(_containers(model, ""))
    if not containers:
        raise ParallelError(
            f"{type(model).__name__} has no stack of layers with attention, so ranks cannot share its sequences: leave"
            " context_parallel_degree at 1, or put its layers into one nn.ModuleList or nn.Sequential"
        )
    for name, container in containers:
        _check(model, name, container)
    return [Stack(name, list(container.children()), _sequence_axis(container)) for name, container in containers]


def _containers(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if _is_stack(child):
            yield child_path, child
        else:
            yield from _containers(child, child_path)


def _is_stack(module: nn.Module) -> bool:
    layers = list(module.children())
    return (
        isinstance(module, (nn.ModuleList, nn.Sequential))
        and len({type(layer) for layer in layers}) == 1
        # A container of attention modules alone is a part of a layer.
        and all(_has_attention(layer) and not _ATTENTION.search(type(layer).__name__) for layer in layers)
    )


def _has_attention(layer: nn.Module) -> bool:
    return any(
        isinstance(module, nn.MultiheadAttention) or _ATTENTION.search(f"{name} {type(module).__name__}")
        for name, module in layer.named_modules()
    )


def _check(model: nn.Module, stack: str, container: nn.Module) -> None:
    for name, module in container.named_modules():
        kind = type(module).__name__
        if isinstance(module, _NOT_POINTWISE):
            reason = "reads other positions than its own"
        elif _POSITIONS.search(name.rpartition(".")[2]) or _POSITIONS.search(kind):
            reason = "makes positions from the length of its input, of which a rank has a part"
        else:
            continue
        raise ParallelError(
            f"ranks cannot share the sequences of {type(model).__name__}: its layer {stack}.{name} ({kind}) {reason}."
            " Leave context_parallel_degree at 1, or use a model that gives its layers their positions as an argument"
        )


def _sequence_axis(container: nn.Module) -> int:
    """Return 0 for layers of torch's that take (sequence, batch, features), else 1."""
    attentions = [module for module in container.modules() if isinstance(module, nn.MultiheadAttention)]
    return 0 if any(not attention.batch_first for attention in attentions) else 1
