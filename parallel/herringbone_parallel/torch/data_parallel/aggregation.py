"""Gradients of several backwards added up before they are averaged over the ranks, unknown to the script.

With `"aggregation_frequency": 4` the script goes on as it is, and 3 of 4 calls of `optimizer.step` find nothing to do:

    backward 1, 2, 3   the gradients are kept here, added up; `.grad` is None when `backward` returns
    backward 4         added up with the others, divided by 4, averaged over the ranks: `.grad` is what one backward of
                       a batch four times as large would give. Where the job asks for sums, not divided

An optimizer leaves a parameter without a gradient alone, with its momentum, its weight decay and its count of steps, as
all of torch's do. A GradScaler, which insists on gradients, is taught to do nothing too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import Aggregation


class Aggregator:
    """Adds up what several backwards of one model give. A backward inside the user's `no_sync` does not count."""

    def __init__(self, asked: Aggregation) -> None:
        self._every, self._divisor = asked.every, asked.every if asked.averaged else 1
        self._kept: dict[nn.Parameter, torch.Tensor] = {}
        self._done = 0
        self._under_way = False
        self._withheld = False

    def watch(self, model: DistributedDataParallel) -> None:
        """Take part in each forward and backward of the model from now on."""
        model.register_forward_pre_hook(self._before_forward)
        model.register_forward_hook(self._after_forward)
        for kind in _scalers():
            _teach(kind)

    def _before_forward(self, model: Any, _: Any) -> None:
        if model.static_graph:
            # torch's reducer sums in the first backward of a static graph, also in one that is not to.
            raise ParallelError(
                f"aggregation_frequency {self._every} and DistributedDataParallel(static_graph=True): torch learns a"
                " static graph in a first backward that sums; leave one of them out"
            )
        if self._withheld:  # that forward raised
            self._withheld, model.require_backward_grad_sync = False, True
        if torch.is_grad_enabled() and model.require_backward_grad_sync and self._done + 1 < self._every:
            self._withheld, model.require_backward_grad_sync = True, False

    def _after_forward(self, model: Any, _: Any, output: Any) -> None:
        counts = self._withheld or model.require_backward_grad_sync
        if self._withheld:
            self._withheld, model.require_backward_grad_sync = False, True
        if not torch.is_grad_enabled() or not counts:
            return
        parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        last = self._done + 1 == self._every

        def begin(_: torch.Tensor) -> None:
            self._begin(parameters, last)

        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.requires_grad:
                tensor.register_hook(begin)

    def _begin(self, parameters: list[nn.Parameter], last: bool) -> None:
        """The backward has reached the model's output: have it add to what is kept."""
        if self._under_way:
            return
        self._under_way = True
        for parameter, kept in self._kept.items():
            parameter.grad = kept if parameter.grad is None else parameter.grad.add_(kept)
        self._kept.clear()
        end = functools.partial(self._end, parameters, last)
        # What is queued by one callback runs after those that are queued by then, such as DDP's wait for its buckets.
        after_backward(functools.partial(after_backward, end) if last else end)

    def _end(self, parameters: list[nn.Parameter], last: bool) -> None:
        self._under_way = False
        self._done = 0 if last else self._done + 1
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                if last:
                    parameter.grad.div_(self._divisor)
                else:
                    self._kept[parameter], parameter.grad = parameter.grad, None


def after_backward(call: Callable[[], None]) -> None:
    """Have a backward that is under way end with this call."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _scalers() -> list[type]:
    """Return torch's kinds of GradScaler; before 2.3 there was one, for CUDA."""
    return [getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)]


def _teach(kind: Any) -> None:
    """Have a GradScaler do nothing for an optimizer without gradients; its scale stays until there are some."""
    if hasattr(kind, "_herringbone_idle"):
        return
    kind._herringbone_idle = False
    unscale, step, update = kind.unscale_, kind.step, kind.update

    @functools.wraps(unscale)
    def unscale_where_any(self: Any, optimizer: Any) -> None:
        if _has_gradients(optimizer):
            unscale(self, optimizer)

    @functools.wraps(step)
    def step_where_any(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._herringbone_idle = not _has_gradients(optimizer)
        return None if self._herringbone_idle else step(self, optimizer, *args, **kwargs)

    @functools.wraps(update)
    def update_where_any(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self._herringbone_idle:
            update(self, *args, **kwargs)

    kind.unscale_, kind.step, kind.update = unscale_where_any, step_where_any, update_where_any


def _has_gradients(optimizer: Any) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
