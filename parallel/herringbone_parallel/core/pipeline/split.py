"""Splits the arguments of a step function into microbatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, replace_leaves

# (name of the argument, leaf, microbatches, axis) -> the leaf's pieces, or None for a leaf that is no tensor.
Pieces = Callable[[str, Any, int, int], Sequence[Any] | None]


class Splitter:
    """Splits every tensor among the arguments of `function` on axis 0, also inside lists, tuples and dicts.

        splitter = Splitter(step, whole=["mask"], axes={"states": 1}, pieces=pieces)
        for args, kwargs in splitter.split((images, labels), {}, microbatches=4): ...

    Arguments named in `whole` go to every microbatch as they are. `axes` gives another axis by argument name. An object
    with `smp_slice(num_mb, mb, axis)` slices itself. `pieces` splits a framework's tensor. All other leaves go to every
    microbatch unchanged. Raises `ParallelError` for a name that is no argument of the function.
    """

    def __init__(
        self, function: Callable[..., Any], whole: Collection[str], axes: Mapping[str, int], pieces: Pieces
    ) -> None:
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        for setting, names in (("non_split_inputs", whole), ("input_split_axes", axes)):
            for name in names:
                if name not in parameters:
                    raise ParallelError(
                        f"smp.step({setting}=...): {getattr(function, '__qualname__', function)} has no argument"
                        f" {name!r}; it has {', '.join(parameters) or 'none'}"
                    )
        self._whole = set(whole)
        self._axes = dict(axes)
        self._pieces = pieces

    def split(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        microbatches: int,
        check: Callable[[str, Any], None] = lambda _name, _leaf: None,
    ) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments of each microbatch; first `check` every leaf, also of arguments that stay whole.

        Raises `ParallelError` when `microbatches` does not divide a batch, and TypeError for arguments that the
        function does not take.
        """
        bound = self._signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            for leaf in leaves_of(value):
                check(name, leaf)
        parts = {name: self._split_argument(name, value, microbatches) for name, value in bound.arguments.items()}
        arguments = []
        for index in range(microbatches):
            bound.arguments.update({name: part[index] for name, part in parts.items()})
            arguments.append((bound.args, bound.kwargs))
        return arguments

    def _split_argument(self, name: str, value: Any, microbatches: int) -> list[Any]:
        if name in self._whole:
            return [value] * microbatches
        axis = self._axes.get(name, 0)

        # The structure is walked once per microbatch, but a leaf is split once: a tensor that occurs twice stays one
        # tensor. `value` keeps the leaves alive, so no id is used again.
        pieces_of: dict[int, Sequence[Any]] = {}

        def piece(index: int, leaf: Any) -> Any:
            if id(leaf) not in pieces_of:
                pieces_of[id(leaf)] = self._split_leaf(name, leaf, microbatches, axis)
            return pieces_of[id(leaf)][index]

        return [replace_leaves(value, partial(piece, index)) for index in range(microbatches)]

    def _split_leaf(self, name: str, leaf: Any, microbatches: int, axis: int) -> Sequence[Any]:
        if hasattr(leaf, "smp_slice"):
            return [leaf.smp_slice(microbatches, index, axis) for index in range(microbatches)]
        pieces = self._pieces(name, leaf, microbatches, axis)
        return [leaf] * microbatches if pieces is None else pieces
