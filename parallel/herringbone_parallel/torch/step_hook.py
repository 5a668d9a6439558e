"""Count the steps of torch's optimizers for the job's events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from herringbone_contract.events.steps import is_heard, tick

_hooks: list[Any] = []
_counting = True


def count_steps() -> None:
    """Count each step of an optimizer from now on, if somebody listens; a second call changes nothing.

    A step that a gradient scaler skips is not counted, and an evaluation has none.
    """
    if not _hooks and is_heard():
        _hooks.append(register_optimizer_step_post_hook(_count))


@contextmanager
def not_counting() -> Iterator[None]:
    """Do not count the steps in the `with` block, which are none of the script; nor are its calls of modules."""
    global _counting
    before, _counting = _counting, False
    try:
        yield
    finally:
        _counting = before


def is_counting() -> bool:
    """Return whether a step, or a call of a module, is one of the script."""
    return _counting


def _count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _counting:
        tick(optimizer)
