"""The results of a step, on every rank: what one rank holds is sent to the others once, at the end of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves
from herringbone_parallel.torch.model_parallel.output import StepOutput
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value

# (rank, bytes) -> None starts sending; (rank) -> bytes waits. Bytes are one-dimensional uint8 tensors.
Send = Callable[[int, torch.Tensor], None]
Wait = Callable[[int], torch.Tensor]


def share(results: Sequence[Any], rank: int, partitions: int, send: Send, wait: Wait) -> list[Any]:
    """Return the results with data in place of placed tensors; a rank that holds any sends each other one message."""
    everyone = set(range(partitions))
    wanted: dict[int, dict[int, Value]] = {}
    for leaf in leaves_of(list(results)):
        if isinstance(leaf, PlacedTensor) and leaf.value.holders != everyone:
            wanted.setdefault(leaf.value.owner, {})[id(leaf.value)] = leaf.value
    for owner, values in wanted.items():
        if owner == rank:
            packed = _pack([_data(value) for value in values.values()])
            for peer in everyone - {rank}:
                send(peer, packed)
    for owner, values in wanted.items():
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
        # A copy of its own: an unaligned slice cannot be seen as another dtype, and a view would keep all the rest.
        value.local = part.clone().view(value.spec.dtype).reshape(value.spec.shape)
