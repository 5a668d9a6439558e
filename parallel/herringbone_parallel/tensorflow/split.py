"""Cuts the arguments of a step function into microbatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_parallel.core.microbatch import microbatch_size
from herringbone_parallel.core.structure import replace_leaves
from herringbone_spec.errors import ParallelError


class Splitter:
    """Splits every tensor among the arguments of `function` on axis 0, also inside lists, tuples and dicts.

    Arguments named in `whole` go to every microbatch as they are; `axes` gives another axis by argument name. An object
    with `smp_slice(num_mb, mb, axis)` slices itself. Everything else passes through.
    """

    def __init__(self, function: Callable[..., Any], whole: Collection[str], axes: Mapping[str, int]) -> None:
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

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], microbatches: int
    ) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments of each microbatch; TypeError for arguments that do not fit the function.

        Raises `ParallelError` when `microbatches` does not divide a batch, and for a tensor that cannot be split.
        """
        bound = self._signature.bind(*args, **kwargs)
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
                cut[id(leaf)] = _pieces(name, leaf, microbatches, axis)
            return cut[id(leaf)][index]

        return [replace_leaves(value, partial(piece, index)) for index in range(microbatches)]


def is_tensor(leaf: Any) -> bool:
    """Say whether an argument is a tensor, and not a value that the function is traced with."""
    return isinstance(leaf, tf.Tensor | np.ndarray)


def _pieces(name: str, leaf: Any, microbatches: int, axis: int) -> Sequence[Any]:
    if hasattr(leaf, "smp_slice"):
        return [leaf.smp_slice(microbatches, index, axis) for index in range(microbatches)]
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        raise ParallelError(
            f"argument {name!r} of the step is a {type(leaf).__name__}, which cannot be cut into microbatches: pass it"
            " dense, or name it in non_split_inputs and let the step take what it needs"
        )
    if not is_tensor(leaf) or not len(leaf.shape):
        return [leaf] * microbatches
    if leaf.shape[axis] is not None:
        microbatch_size(leaf.shape[axis], microbatches, what=f"argument {name!r}", axis=axis)
    return tf.split(leaf, microbatches, axis)  # type: ignore[no-any-return]
