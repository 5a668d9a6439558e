"""Shapes: the description of a tensor without its data, and the book of the shapes that calls return."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.structure import leaves_of, replace_leaves

# The bound on a shape book's entries, for scripts whose calls never repeat.
_MAX_KNOWN = 10_000


class TensorSpec:
    """Shape, dtype and `requires_grad` of a tensor: the same on every rank.

    It is a plain class because `core.structure` treats a named tuple as a structure, and a spec has to be a leaf.
    """

    __slots__ = ("dtype", "requires_grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool) -> None:
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """Return the spec of a tensor."""
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


def kind_of(model: nn.Module) -> int:
    """Return a number for what a script changes between steps and results depend on: modes, names, frozen parameters.

    Only the process that made it can make it again.
    """
    parts: list[Hashable] = []
    for module in model.modules():
        parts += [module.training, *module._parameters]
        parts += [parameter is not None and parameter.requires_grad for parameter in module._parameters.values()]
    return hash(tuple(parts))


class ShapeBook:
    """The shapes that each kind of call returned: learned in one step, and relied on from the next step on.

        shapes = book.get(call)             # None: the rank that runs the call will send them
        book.learn(call, shapes)
        book.turn_page()                    # between steps

    Within a step the answers of `get` never change. So every rank knows at each call whether shapes will be sent,
    although the ranks run their microbatches in different orders. `kind` is that of the model in this step, the same on
    every rank.
    """

    def __init__(self) -> None:
        self.kind: int | None = None
        self._known: dict[Hashable, Any] = {}
        self._learned: dict[Hashable, Any] = {}
        # Calls whose results differ from visit to visit; their shapes are sent every time.
        self._varying: set[Hashable] = set()

    def get(self, call: Hashable) -> Any:
        """Return the call's result as `shapes_of` describes it, or None when it is not known."""
        return self._known.get((self.kind, call))

    def learn(self, call: Hashable, shapes: Any) -> None:
        """Note the result of a call in this step."""
        call = (self.kind, call)
        if any(leaf is not None and not isinstance(leaf, TensorSpec) for leaf in leaves_of(shapes)):
            # A number or a string in the result may differ next time.
            self._varying.add(call)
        elif call in self._learned and self._learned[call] != shapes:
            self._varying.add(call)
        else:
            self._learned[call] = shapes

    def turn_page(self) -> None:
        """Let `get` answer with the shapes of the step that has ended."""
        for call, shapes in self._learned.items():
            if call not in self._varying:
                self._known[call] = shapes
        self._learned.clear()
        if len(self._known) + len(self._varying) > _MAX_KNOWN:
            # Calls with ever-changing numbers among their arguments have filled the book. Every rank clears it after
            # the same step, because all books have the same contents.
            self._known.clear()
            self._varying.clear()
