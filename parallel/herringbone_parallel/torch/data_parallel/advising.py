"""Times one step of a DistributedDataParallel model on rank 0, for the advice about its sums."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from herringbone_parallel.core.sums.simulate import Sum
from herringbone_parallel.reduce.advising import Step
from herringbone_parallel.torch.data_parallel.aggregation import after_backward

# The first step allocates memory that later ones reuse, and torch rebuilds its buckets in the second one.
_TIMED_STEP = 3

Mark = Any


class Clock:
    """The processor's clock."""

    def mark(self) -> Mark:
        """Return the current time."""
        return time.perf_counter()

    def seconds(self, since: Mark, until: Mark) -> float:
        """Return the seconds between two marks."""
        return float(until - since)


class CudaClock(Clock):
    """The clock of a device's stream: Python continues before the device has done its work. Never run on CUDA."""

    def mark(self) -> Mark:
        """Return an event behind all work that is queued now."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, since: Mark, until: Mark) -> float:
        """Wait for the later event; return the seconds between both."""
        until.synchronize()
        return float(since.elapsed_time(until)) / 1e3


class GradientObserver:
    """Times the third step that sums over the ranks, gradient by gradient; then calls `done` with it.

        GradientObserver(model, Clock(), done)

    All hooks are removed afterwards, so later steps cost nothing.
    """

    def __init__(self, model: DistributedDataParallel, clock: Clock, done: Callable[[Step], object]) -> None:
        self._clock, self._done = clock, done
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self._passes = self._sums = 0
        self._forward: tuple[Mark, Mark] | None = None
        self._backward_start: Mark = None
        self._final_marks: list[tuple[nn.Parameter, Mark]] = []
        self._hooks: list[Any] = [
            model.register_forward_pre_hook(self._before_forward),
            # Registered before the aggregator's hook, which hides that a pass is withheld from synchronization.
            model.register_forward_hook(self._after_forward),
        ]

    def _before_forward(self, *_: Any) -> None:
        self._forward = self._clock.mark(), None

    def _after_forward(self, model: Any, _: Any, output: Any) -> None:
        if not torch.is_grad_enabled() or self._forward is None:
            return
        self._forward = self._forward[0], self._clock.mark()
        self._passes += 1
        if not model.require_backward_grad_sync:
            return
        self._sums += 1
        if self._sums < _TIMED_STEP:
            self._passes = 0
            return
        # The script may have frozen some since the model was wrapped.
        self._parameters = [parameter for parameter in self._parameters if parameter.requires_grad]
        # Hooks on gradients slow a backward down, so they exist only in the step that is timed.
        for hook in self._hooks:
            hook.remove()
        self._hooks = [parameter.register_hook(partial(self._note_final, parameter)) for parameter in self._parameters]
        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.requires_grad:
                self._hooks.append(tensor.register_hook(self._start_backward))

    def _start_backward(self, _: torch.Tensor) -> None:
        if self._backward_start is None:
            self._backward_start = self._clock.mark()
            after_backward(self._end)

    def _note_final(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        self._final_marks.append((parameter, self._clock.mark()))

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        final, self._final_marks = self._final_marks, []
        if final and self._forward is not None:
            self._done(step_of(self._clock, self._forward, self._backward_start, final, self._passes))


def step_of(
    clock: Clock, forward: tuple[Mark, Mark], began: Mark, final: list[tuple[nn.Parameter, Mark]], passes: int
) -> Step:
    """Return the step with these marks. If several passes are summed together, the last of them was timed."""
    ready_s = [clock.seconds(began, mark) for _, mark in final]
    sizes = [parameter.numel() * parameter.element_size() for parameter, _ in final]
    forward_s, backward_s = clock.seconds(*forward), max(*ready_s, 1e-6)
    return Step(
        gradients=[Sum(size, at) for size, at in zip(sizes, ready_s, strict=True)],
        forward_s=passes * forward_s + (passes - 1) * backward_s,
        backward_s=backward_s,
        element=str(max(final, key=lambda pair: pair[0].numel())[0].dtype).removeprefix("torch."),
    )
