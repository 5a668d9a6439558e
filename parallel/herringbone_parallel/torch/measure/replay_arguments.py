"""Make the arguments of a measured operation from their description: random tensors, and plain values."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from herringbone_parallel.core.prediction.measurement import Operation

# Copies of one parameter-shaped tensor, of layers that are alike: more than caches hold.
_COPIES_BYTES = 1 << 27


class Turn(NamedTuple):
    """The place of an operation in the update of a parameter, which works on so many tensors of the same shape."""

    number: int
    tensors: int


class Tensors:
    """Random tensors, shared by all operations: one for each distinct description and position among its equals.

    Tensors with the shape of parameters are there once for each of the layers that are alike.
    """

    def __init__(self, device: torch.device, parameters: Counter[tuple[int, ...]]) -> None:
        self.device, self._parameters = device, parameters
        self._known: dict[tuple[str, int, int, int], torch.Tensor] = {}

    def layers(self, operation: Operation) -> int:
        """Return the number of layers that have parameters of an operation's shapes, as far as memory allows."""
        return max((self._copies(shape, operation.dtype) for shape in operation.shapes), default=1)

    def is_parameters(self, result: Any) -> bool:
        """Return True if a result has a tensor of the shape of a parameter."""
        results = result if isinstance(result, (list, tuple)) else (result,)
        return any(isinstance(item, torch.Tensor) and sorted_shape(item.shape) in self._parameters for item in results)

    def _copies(self, shape: Iterable[int], dtype: str) -> int:
        size = math.prod(shape) * int(getattr(torch, dtype or "float32").itemsize)
        return max(1, min(self._parameters[sorted_shape(shape)], _COPIES_BYTES // max(1, size)))

    def of(self, value: dict[str, Any], position: int, below: int, layer: int) -> torch.Tensor:
        """Return the tensor of a description that an operation has at a position among its equals."""
        layer %= self._copies(value["shape"], value["tensor"])
        key = (json.dumps(value), position, below, layer)
        if key not in self._known:
            first = self._known.get((*key[:3], 0))
            # Copies are made much faster than random numbers.
            self._known[key] = self._made(value, below) if first is None else first.clone()
        return self._known[key]

    def _made(self, value: dict[str, Any], below: int) -> torch.Tensor:
        dtype, shape = getattr(torch, value["tensor"]), value["shape"]
        strides = value.get("strides")
        if strides is None or 0 in shape:
            return self._filled(shape, dtype, value.get("below", below))
        size = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        return torch.as_strided(self._filled([size], dtype, value.get("below", below)), shape, strides)

    def _filled(self, shape: list[int], dtype: torch.dtype, below: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.rand(shape, dtype=dtype, device=self.device)
        if dtype == torch.bool:
            return torch.rand(shape, device=self.device) < 0.9
        return torch.randint(max(1, below), shape, dtype=dtype, device=self.device)


class Decoding:
    """Makes the arguments of one call from their description.

    Of tensors with one description, those after the first `layered` ones are the same in all layers.
    """

    def __init__(self, tensors: Tensors, below: int, layer: int, layered: int | None, turn: Turn | None) -> None:
        self._tensors, self._below, self._layer, self._layered = tensors, below, layer, layered
        self._turn = turn
        self._used: Counter[str] = Counter()

    def __call__(self, value: Any) -> Any:
        """Return the argument that `Operation.arguments` describes."""
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            key = json.dumps(value)
            self._used[key] += 1
            layer = self._layer if self._layered is None or self._used[key] <= self._layered else 0
            place = self._used[key]
            if self._turn is not None:
                place = 1 + (self._turn.number + place) % self._turn.tensors
            return self._tensors.of(value, place, self._below, layer)
        ((kind, text),) = value.items()
        if kind == "float":
            return float(text)
        return self._tensors.device if kind == "device" else getattr(torch, text)


def sorted_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the shape without the order of dimensions, in which a transposed weight differs."""
    return tuple(sorted(shape))


def limit_of_indices(name: str, args: list[Any]) -> int:
    """Return the limit of indices among an operation's arguments; 1 where it is not known, so that all are 0."""
    if name.startswith("aten.embedding_dense_backward"):
        return int(args[2])
    if name.startswith(("aten.embedding", "aten.index", "aten.nll_loss", "aten.gather")):
        shapes = [arg["shape"] for arg in args if isinstance(arg, dict) and "tensor" in arg]
        shape = next((shape for shape in shapes if len(shape) >= 2), [1])
        return int(shape[-1] if "nll_loss" in name else shape[0] if "gather" not in name else min(shape))
    return 1
