"""Find the memory that kernels of CPUs allocate while they run, beside their results.

    scratch.note(7, torch.ops.aten.convolution.default, args, kwargs)
    scratch.bytes_of({7})       # {7: 696888}

oneDNN copies inputs and weights of convolutions and recurrent layers into its own formats. No kernel for shapes tells
how much that is, so each distinct operation runs once for real. Large convolutions run on one sample and on two, as
their scratch memory grows evenly with the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from herringbone_parallel.core.prediction.measurement import Operation
from herringbone_parallel.torch.measure.skipping import Shape, replaced_leaves, shape_of

# The positions of the arguments that have the batch in their first dimension, None for operations that run whole.
_OPERATIONS: dict[str, tuple[int, ...] | None] = {
    "convolution": (0,),
    "convolution_backward": (0, 1),
    "mkldnn_rnn_layer": None,
    "mkldnn_rnn_layer_backward": None,
}
# The work up to which an operation runs on its whole batch, and up to which it runs at all.
_WHOLE, _MOST = 3e8, 3e10


@dataclass(frozen=True)
class _Template:
    func: Any
    args: Any
    kwargs: Any
    work: int

    def batches(self) -> list[int | None]:
        """Return the batch sizes to run with, None for the operation's own."""
        positions = _OPERATIONS[self.func.overloadpacket.__name__]
        if self.work <= _WHOLE or (positions is None and self.work <= _MOST):
            return [None]
        if positions is None or self.work / self.size > _MOST:
            return []
        return [None] if self.size < 3 else [1, 2]

    @property
    def size(self) -> int:
        """The batch of a convolution."""
        return int(self.args[0].size[0])

    def prepared(self, batch: int | None) -> Callable[[], Any]:
        """Return the call of the operation, on tensors that exist."""
        positions = _OPERATIONS[self.func.overloadpacket.__name__] or ()
        args = list(self.args)
        if batch is not None:
            for position in positions:
                shape = args[position]
                args[position] = Shape((batch, *shape.size[1:]), shape.stride, shape.dtype)
        return functools.partial(self.func, *_real(args), **_real(self.kwargs))


class Scratch:
    """The operations of a measurement that use scratch memory."""

    def __init__(self) -> None:
        self._templates: dict[int, _Template] = {}

    def note(self, number: int, func: Any, args: Any, kwargs: Any, operation: Operation) -> None:
        """Remember an operation, if it is one of those."""
        if func.overloadpacket.__name__ in _OPERATIONS:
            template = _Template(func, replaced_leaves(args, shape_of), kwargs, operation.operations)
            self._templates[number] = template

    def bytes_of(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the scratch memory of the operations with these numbers."""
        runs = [
            (number, batch) for number in numbers if number in self._templates
            for batch in self._templates[number].batches()
        ]  # fmt: skip
        if not runs:
            return {}
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, torch.no_grad():
            for number, batch in runs:
                call = self._templates[number].prepared(batch)
                with record_function(f"{_MARK}{number}:{batch}"):
                    # Held until the mark has ended, so that only scratch memory is freed before.
                    results = call()
                del results
        measured = _beside_results(profiler)
        scratch: dict[int, int] = {}
        for number, batch in runs:
            here = measured.get(f"{_MARK}{number}:{batch}", 0)
            if batch == 2:
                one, size = scratch[number], self._templates[number].size
                here = one + max(0, here - one) * (size - 1)
            scratch[number] = here
        return scratch


_MARK = "measure:"


def _beside_results(profiler: Any) -> dict[str, int]:
    """Return by mark the most bytes that were held inside of it, without those of results."""
    events = profiler.profiler.kineto_results.events()
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    peaks = {}
    for event in events:
        if not event.name().startswith(_MARK):
            continue
        end = event.start_ns() + event.duration_ns()
        live = peak = 0
        for moment, size in memory:
            if event.start_ns() <= moment <= end:
                live += size
                peak = max(peak, live)
        peaks[event.name()] = peak - live
    return peaks


def _real(value: Any) -> Any:
    def make(leaf: Any) -> Any:
        return leaf.make().zero_() if isinstance(leaf, Shape) else leaf

    return replaced_leaves(value, make)
