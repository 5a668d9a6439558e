"""Errors for uses of sharded parameters that torch refuses without a word about their cause."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from herringbone_contract.errors import ParallelError

# Of torch's error for an operation on a part of a parameter and a whole tensor.
_MIXED = "got mixed torch.Tensor and DTensor"
_LIBRARIES = ("torch", "transformers")
_explained: set[type] = set()
_watched: list[Any] = []


def explain(unit: nn.Module) -> None:
    """Have the methods of a unit's class say why they cannot use parameters that are not whole there."""
    kind = type(unit)
    # `fully_shard` has made the class, for all of its modules together.
    if kind in _explained:
        return
    _explained.add(kind)
    owner = kind.__name__.removeprefix("FSDP")
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for name, method in vars(base).items():
                if inspect.isfunction(method) and not name.startswith("__") and getattr(kind, name) is method:
                    setattr(kind, name, _explaining(method, owner, name))


def _explaining(method: Callable[..., Any], owner: str, name: str) -> Callable[..., Any]:
    @wraps(method)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            if _MIXED not in str(error):
                raise
            raise ParallelError(_reason(owner, name)) from error

    return explaining


def _reason(owner: str, method: str) -> str:
    """Return the error for a method of a class of units. Pure."""
    if method == "forward":
        return (
            f"{owner}.forward uses parameters of a block that it does not call, and a block is whole in its own"
            " forward only: the ranks share it. Call the block, as layer(x); or let the model be one block:"
            " shard(model, blocks=[])"
        )
    return (
        f"{owner}.{method} uses parameters that are whole in {owner}.forward only: the ranks share them. Call this"
        f' after shard: torch.distributed.fsdp.register_fsdp_forward_method(module, "{method}") for each module of the'
        " class"
    )


def watch_optimizers() -> None:
    """Refuse optimizers that keep whole tensors for parts; a second call changes nothing."""
    if not _watched:
        _watched.append(register_optimizer_step_pre_hook(_check))


def _check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    from torch.distributed.tensor import DTensor

    kind = type(optimizer)
    if "Adafactor" not in kind.__name__:
        return
    for group in optimizer.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            if kind is not torch.optim.Adafactor:
                raise ParallelError(
                    f"{kind.__module__}.{kind.__name__} keeps a mean of each row and column of a parameter, and a rank"
                    " of a sharded model has a part of it. Use torch.optim.Adafactor, whose numbers are those of the"
                    " whole"
                )
            # The same steps, parameter by parameter: only these join the parts of a norm.
            group["foreach"] = False
