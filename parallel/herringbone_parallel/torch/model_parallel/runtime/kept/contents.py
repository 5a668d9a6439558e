"""The content of a `Location`: a dict's copy, a list of a container's members, or one value; and the tensors in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

import torch

from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.shapes import TensorSpec


def members(content: Any) -> Iterable[Any]:
    """Return the members, which are containers of their own unless they are tuples."""
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else [content]


def placed_in(content: Any) -> list[PlacedTensor]:
    """Return the placed tensors."""
    tuples = (leaves_of(member) if isinstance(member, tuple) else [member] for member in members(content))
    return [leaf for leaf in chain.from_iterable(tuples) if isinstance(leaf, PlacedTensor)]


def with_tensors(content: Any, new: dict[int, Any]) -> Any:
    """Return the content with `new` tensors in the places of those that have these identities."""

    def change(member: Any) -> Any:
        return new.get(id(member), member)

    def change_in(member: Any) -> Any:
        return replace_leaves(member, change) if isinstance(member, tuple) else change(member)

    if isinstance(content, dict):
        return {key: change_in(member) for key, member in content.items()}
    return list(map(change_in, content)) if isinstance(content, list) else change_in(content)


def with_placed(content: Any, before: Any) -> Any:
    """Return the content with the placed tensors of `before` in whose place code of one rank has put their data.

    A checkpointed module that keeps a tensor keeps it once more when it is recomputed.
    """
    if isinstance(content, dict) and isinstance(before, dict):
        return {key: _placed_if_same(value, before.get(key)) for key, value in content.items()}
    if isinstance(content, list) and isinstance(before, list):
        return [_placed_if_same(*pair) for pair in zip_longest(content, before[: len(content)])]
    return _placed_if_same(content, before)


def _placed_if_same(value: Any, before: Any) -> Any:
    if type(value) is not torch.Tensor or not isinstance(before, PlacedTensor):
        return value
    return before if value.requires_grad and TensorSpec.of(value) == before.value.spec else value
