"""One step of a DistributedDataParallel as rank 0 sees it: what the advice for its sums follows from."""

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

# The first step makes what later ones use again, the second one has its buckets moved by torch.
_SEEN = 3

Mark = Any


class Clock:
    """The processor's clock."""

    def mark(self) -> Mark:
        return time.perf_counter()

    def seconds(self, since: Mark, until: Mark) -> float:
        return float(until - since)


class CudaClock(Clock):
    """The clock of a device's stream, as its work is only begun when Python goes on. Never run on CUDA."""

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, since: Mark, until: Mark) -> float:
        until.synchronize()
        return float(since.elapsed_time(until)) / 1e3


class Observer:
    """Times the third step that sums, and calls `done` with what was seen; then it is gone.

    Observer(model, Clock(), done)
    """

    def __init__(self, model: DistributedDataParallel, clock: Clock, done: Callable[[Step], object]) -> None:
        self._clock, self._done = clock, done
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self._passes = self._sums = 0
        self._forward: tuple[Mark, Mark] | None = None
        self._began: Mark = None
        self._final: list[tuple[nn.Parameter, Mark]] = []
        self._hooks: list[Any] = [
            model.register_forward_pre_hook(self._before_forward),
            # Before an aggregation's, which makes a pass that is withheld look like any other.
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
        if self._sums < _SEEN:
            self._passes = 0
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [parameter.register_hook(partial(self._is_final, parameter)) for parameter in self._parameters]
        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.requires_grad:
                self._hooks.append(tensor.register_hook(self._begin))

    def _begin(self, _: torch.Tensor) -> None:
        if self._began is None:
            self._began = self._clock.mark()
            after_backward(self._end)

    def _is_final(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        self._final.append((parameter, self._clock.mark()))

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        final, self._final = self._final, []
        if final and self._forward is not None:
            self._done(seen(self._clock, self._forward, self._began, final, self._passes))


def seen(
    clock: Clock, forward: tuple[Mark, Mark], began: Mark, final: list[tuple[nn.Parameter, Mark]], passes: int
) -> Step:
    """Return the step that these marks tell of; of several passes that are summed at once, the last one was timed."""
    ready_s = [clock.seconds(began, mark) for _, mark in final]
    sizes = [parameter.numel() * parameter.element_size() for parameter, _ in final]
    forward_s, backward_s = clock.seconds(*forward), max(*ready_s, 1e-6)
    return Step(
        gradients=[Sum(size, at) for size, at in zip(sizes, ready_s, strict=True)],
        forward_s=passes * forward_s + (passes - 1) * backward_s,
        backward_s=backward_s,
        element=str(max(final, key=lambda one: one[0].numel())[0].dtype).removeprefix("torch."),
    )
