"""Count the steps of torch's optimizers for the job's events."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from herringbone_contract.events.steps import is_heard, tick

_hooks: list[Any] = []


def count_steps() -> None:
    """Count each step of an optimizer from now on, if somebody listens; a second call changes nothing.

    A step that a gradient scaler skips is not counted, and an evaluation has none.
    """
    if not _hooks and is_heard():
        _hooks.append(register_optimizer_step_post_hook(lambda optimizer, *_: tick(optimizer)))
