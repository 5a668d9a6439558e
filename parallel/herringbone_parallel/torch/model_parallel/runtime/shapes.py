"""What is known of a tensor without its data, and the book in which ranks note what calls return."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from herringbone_parallel.core.structure import leaves_of, replace_leaves

_MAX_KNOWN = 10_000


class TensorSpec:
    """Shape, dtype and whether gradients flow: the same on every rank. A leaf, unlike a named tuple."""

    __slots__ = ("dtype", "requires_grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool) -> None:
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.dtype, self.requires_grad)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


def shapes_of(result: Any) -> Any:
    """Return the same structure with each tensor replaced by its `TensorSpec`."""
    return replace_leaves(result, lambda leaf: TensorSpec.of(leaf) if isinstance(leaf, torch.Tensor) else leaf)


class ShapeBook:
    """What each kind of call returned, learnt in one step and relied on from the next.

    Learning takes effect between steps, so that at each call every rank agrees on whether shapes will be sent.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self._learnt: dict[Hashable, Any] = {}
        self._varying: set[Hashable] = set()

    def get(self, call: Hashable) -> Any:
        """Return what the call will return, as `shapes_of` gives it, or None when that must be asked for."""
        return self._known.get(call)

    def learn(self, call: Hashable, shapes: Any) -> None:
        """Note what the call has returned now."""
        if any(leaf is not None and not isinstance(leaf, TensorSpec) for leaf in leaves_of(shapes)):
            # A number or a string may be another one next time.
            self._varying.add(call)
        elif call in self._learnt and self._learnt[call] != shapes:
            self._varying.add(call)
        else:
            self._learnt[call] = shapes

    def turn_page(self) -> None:
        """Rely, from now on, on what was learnt."""
        for call, shapes in self._learnt.items():
            if call not in self._varying:
                self._known[call] = shapes
        self._learnt.clear()
        if len(self._known) + len(self._varying) > _MAX_KNOWN:
            # Calls with ever-changing numbers among their arguments; the same on every rank, as the contents are.
            self._known.clear()
            self._varying.clear()
