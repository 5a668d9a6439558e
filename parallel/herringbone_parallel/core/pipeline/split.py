"""Cuts the arguments of a step function into microbatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, replace_leaves

Pieces = Callable[[str, Any, int, int], Sequence[Any] | None]


class Splitter:
    """Splits every tensor among the arguments of `function` on axis 0, also inside lists, tuples and dicts.

    Arguments named in `whole` go to every microbatch as they are; `axes` gives another axis by argument name. An object
    with `smp_slice(num_mb, mb, axis)` slices itself. Everything else passes through. `pieces(name, leaf, microbatches,
    axis)` cuts a framework's tensor, and returns None for what is none.
    """

    def __init__(
        self, function: Callable[..., Any], whole: Collection[str], axes: Mapping[str, int], pieces: Pieces
    ) -> None:
        self._signature = inspect.signature(function)
        known = self._signature.parameters
        for setting, names in (("non_split_inputs", whole), ("input_split_axes", axes)):
            for name in names:
                if name not in known:
                    raise ParallelError(
                        f"smp.step({setting}=...): {getattr(function, '__qualname__', function)} has no argument"
                        f" {name!r}; it has {', '.join(known) or 'none'}"
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
        """Return the arguments of each microbatch, after a `check` of every leaf of each, also of those not split.

        Raises `ParallelError` when `microbatches` does not divide a batch; TypeError for arguments that do not fit.
        """
        bound = self._signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            for leaf in leaves_of(value):
                check(name, leaf)
        cuts = {name: self._cut(name, value, microbatches) for name, value in bound.arguments.items()}
        found = []
        for index in range(microbatches):
            bound.arguments.update({name: cut[index] for name, cut in cuts.items()})
            found.append((bound.args, bound.kwargs))
        return found

    def _cut(self, name: str, value: Any, microbatches: int) -> list[Any]:
        if name in self._whole:
            return [value] * microbatches
        axis = self._axes.get(name, 0)

        # A leaf is cut once, the structure is walked once per microbatch.
        cut: dict[int, Sequence[Any]] = {}

        def piece(index: int, leaf: Any) -> Any:
            if id(leaf) not in cut:
                cut[id(leaf)] = self._cut_leaf(name, leaf, microbatches, axis)
            return cut[id(leaf)][index]

        return [replace_leaves(value, partial(piece, index)) for index in range(microbatches)]

    def _cut_leaf(self, name: str, leaf: Any, microbatches: int, axis: int) -> Sequence[Any]:
        if hasattr(leaf, "smp_slice"):
            return [leaf.smp_slice(microbatches, index, axis) for index in range(microbatches)]
        pieces = self._pieces(name, leaf, microbatches, axis)
        return [leaf] * microbatches if pieces is None else pieces
