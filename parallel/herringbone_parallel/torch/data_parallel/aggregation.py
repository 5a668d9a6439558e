"""Adds up the gradients of several backwards before they are averaged over the ranks, without a change of the script.

With `"aggregation_frequency": 4`, 3 of 4 calls of `optimizer.step` have nothing to do:

    backward 1, 2, 3   the gradients are added up and kept here; `.grad` is None when `backward` returns
    backward 4         its gradients are added to the kept ones, divided by 4 (unless the job asks for sums), and
                       averaged over the ranks: `.grad` is the gradient of a batch four times as large

All of torch's optimizers skip a parameter without a gradient, including its momentum, weight decay and count of steps.
A GradScaler raises without gradients, so its methods are replaced by ones that then do nothing.
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
    """Adds up the gradients of several backwards of one model, not counting those inside the user's `no_sync`."""

    def __init__(self, setting: Aggregation) -> None:
        self._every, self._divisor = setting.every, setting.every if setting.averaged else 1
        self._kept: dict[nn.Parameter, torch.Tensor] = {}
        self._done = 0
        # True between the start and the end of one backward.
        self._in_backward = False
        # True while a forward runs with the model's gradient synchronization switched off by this object.
        self._withheld = False

    def watch(self, model: DistributedDataParallel) -> None:
        """Hook into all later forwards and backwards of the model."""
        model.register_forward_pre_hook(self._before_forward)
        model.register_forward_hook(self._after_forward)
        _allow_missing_gradients(torch.amp.GradScaler)

    def _before_forward(self, model: Any, _: Any) -> None:
        if model.static_graph:
            # torch's reducer sums in the first backward of a static graph, even if synchronization is switched off.
            raise ParallelError(
                f"aggregation_frequency {self._every} and DistributedDataParallel(static_graph=True): torch learns a"
                " static graph in a first backward that sums; leave one of them out"
            )
        if self._withheld:  # the previous forward raised, so its second hook did not run
            self._withheld, model.require_backward_grad_sync = False, True
        if torch.is_grad_enabled() and model.require_backward_grad_sync and self._done + 1 < self._every:
            # DistributedDataParallel reads the flag in forward; it decides whether the backward sums over the ranks.
            self._withheld, model.require_backward_grad_sync = True, False

    def _after_forward(self, model: Any, _: Any, output: Any) -> None:
        counts = self._withheld or model.require_backward_grad_sync
        # Restore the flag at once, so that the script and its `no_sync` never see the change.
        if self._withheld:
            self._withheld, model.require_backward_grad_sync = False, True
        if not torch.is_grad_enabled() or not counts:
            return
        parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        last = self._done + 1 == self._every

        # A hook on the outputs runs when a backward of this forward begins, before any parameter's gradient is final.
        def begin(_: torch.Tensor) -> None:
            self._begin(parameters, last)

        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.requires_grad:
                tensor.register_hook(begin)

    def _begin(self, parameters: list[nn.Parameter], last: bool) -> None:
        """Put the kept gradients back into `.grad`, so that the backward adds to them."""
        # A model with several outputs calls this once for each.
        if self._in_backward:
            return
        self._in_backward = True
        for parameter, kept in self._kept.items():
            parameter.grad = kept if parameter.grad is None else parameter.grad.add_(kept)
        self._kept.clear()
        end = functools.partial(self._end, parameters, last)
        # DDP queues a callback, too, that waits for its buckets. A callback that is queued by a callback runs after all
        # that are queued by then, so `end` sees the averages.
        after_backward(functools.partial(after_backward, end) if last else end)

    def _end(self, parameters: list[nn.Parameter], last: bool) -> None:
        self._in_backward = False
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
    """Call `call` at the end of the backward that is running. Only a hook inside a backward may use it."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _allow_missing_gradients(kind: Any) -> None:
    """Make a GradScaler class skip optimizers without gradients; its scale stays until there are gradients."""
    # The class is patched, not an object: the script creates its scaler at any time, before or after the model.
    if hasattr(kind, "_herringbone_idle"):
        return
    kind._herringbone_idle = False
    unscale, step, update = kind.unscale_, kind.step, kind.update

    @functools.wraps(unscale)
    def unscale_if_any(self: Any, optimizer: Any) -> None:
        if _has_gradients(optimizer):
            unscale(self, optimizer)

    @functools.wraps(step)
    def step_if_any(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._herringbone_idle = not _has_gradients(optimizer)
        return None if self._herringbone_idle else step(self, optimizer, *args, **kwargs)

    @functools.wraps(update)
    def update_if_any(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self._herringbone_idle:
            update(self, *args, **kwargs)

    kind.unscale_, kind.step, kind.update = unscale_if_any, step_if_any, update_if_any


def _has_gradients(optimizer: Any) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
