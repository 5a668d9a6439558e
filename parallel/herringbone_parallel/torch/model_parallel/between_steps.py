"""Refuse calls that belong between steps: inside a step they would run once for each microbatch.

A second microbatch's `zero_grad` drops the gradients of the first one, and an `optimizer.step` there uses the gradients
of some microbatches. Source: AWS's documentation of `smp.step`: what follows the gradients is done with its results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.local_parts import own_parameters
from herringbone_parallel.torch.model_parallel.runtime.kept.attributes import watch_attributes
from herringbone_parallel.torch.model_parallel.runtime.microbatch import current

_zero_grad = torch.optim.Optimizer.zero_grad
_zero_grad_of_module = nn.Module.zero_grad
_hooks: list[Any] = []


def check_between_steps(call: str) -> None:
    """Raise `ParallelError` inside a step. `call` is the call's name."""
    if current() is not None:
        raise ParallelError(
            f"{call} inside a function decorated with @smp.step, which runs once for each microbatch: the gradients of"
            " the other microbatches would be lost or left out. Call zero_grad() before the step, and update the"
            " parameters after it"
        )


def guard_torch() -> None:
    """Have torch's own optimizers and modules refuse these calls, too; a second call changes nothing.

    Steps also learn from now on which attributes of modules their code sets.
    """
    watch_attributes()
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_update))
    torch.optim.Optimizer.zero_grad = _guarded_zero_grad  # type: ignore[method-assign]
    nn.Module.zero_grad = _guarded_zero_grad_of_module  # type: ignore[method-assign]


def _before_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _check(_parameters_of(optimizer), "optimizer.step()")


def _guarded_zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    _check(_parameters_of(self), "optimizer.zero_grad()")
    _zero_grad(self, set_to_none)


def _guarded_zero_grad_of_module(self: nn.Module, set_to_none: bool = True) -> None:
    _check(own_parameters(self), f"{type(self).__name__}.zero_grad()")
    _zero_grad_of_module(self, set_to_none)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _check(parameters: Iterable[Any], call: str) -> None:
    if current() is None:
        return
    model: Any = state.get().model
    # The script may train something of its own inside the step.
    trained = set() if model is None else set(map(id, own_parameters(model.module))) - {id(None)}
    if any(id(parameter) in trained for parameter in parameters):
        check_between_steps(call)
