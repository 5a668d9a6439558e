"""The results of a step, on every rank: each rank sends those that it holds to the others, at the end of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves
from herringbone_parallel.torch.model_parallel.output import StepOutput
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value

# `Send` takes a rank and bytes, and starts sending; `Wait` takes a rank and returns its bytes. Bytes are
# one-dimensional uint8 tensors.
Send = Callable[[int, torch.Tensor], None]
Wait = Callable[[int], torch.Tensor]


def share(results: Sequence[Any], rank: int, partitions: int, send: Send, wait: Wait) -> list[Any]:
    """Return the results with data in place of placed tensors. A rank that holds any sends each peer one message."""
    all_ranks = set(range(partitions))
    # By owner, then by identity: the same on every rank, so the parts of a message need no names.
    missing: dict[int, dict[int, Value]] = {}
    for leaf in leaves_of(list(results)):
        if isinstance(leaf, PlacedTensor) and leaf.value.holders != all_ranks:
            missing.setdefault(leaf.value.owner, {})[id(leaf.value)] = leaf.value
    # All sends before the first wait, so that the messages of several owners travel at the same time.
    for owner, values in missing.items():
        if owner == rank:
            packed = _pack([_data(value) for value in values.values()])
            for peer in all_ranks - {rank}:
                send(peer, packed)
    for owner, values in missing.items():
        if owner != rank:
            _unpack(wait(owner), list(values.values()))
    return [
        replace_leaves(result, lambda leaf: _data(leaf.value) if isinstance(leaf, PlacedTensor) else leaf)
        for result in results
    ]


def collect(results: Sequence[Any]) -> Any:
    """Turn a list of results by microbatch into one result of `StepOutput`s and lists."""
    if all(result is None for result in results):
        return None
    columns = zip(*(leaves_of(result) for result in results), strict=True)
    joined = [StepOutput(column) if isinstance(column[0], torch.Tensor) else list(column) for column in columns]
    return rebuild(results[0], joined)


def _data(value: Value) -> torch.Tensor:
    assert value.local is not None
    return value.local


def _pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])


def _unpack(packed: torch.Tensor, values: Sequence[Value]) -> None:
    start = 0
    for value in values:
        part = packed[start : start + value.bytes]
        start += value.bytes
        # A copy: an unaligned slice cannot be viewed as another dtype, and a view would keep the whole message alive.
        value.local = part.clone().view(value.spec.dtype).reshape(value.spec.shape)
