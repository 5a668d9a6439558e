"""Hooks that a script registers on the model: each is called once, with the model or with model and optimizer."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from herringbone_parallel.torch.model_parallel import state

# (model) or (model, optimizer) -> ignored
Hook = Callable[..., Any]


class OneTimeHooks:
    """Hooks that wait for one event, and are called once when it comes.

        hooks = OneTimeHooks()
        handle = hooks.register(lambda model, optimizer: optimizer.load_state_dict(saved))
        hooks.run(model)            # calls and forgets them, in the order of their registration

    `handle.remove()` cancels a hook. A hook may register another one, which is called in the same run.
    """

    def __init__(self) -> None:
        # Ordered by registration, because `RemovableHandle` deletes from it by key.
        self._hooks: OrderedDict[int, Hook] = OrderedDict()

    def register(self, hook: Hook) -> RemovableHandle:
        """Keep the hook for the next `run`."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def run(self, model: Any) -> None:
        """Call all hooks, and forget them."""
        while self._hooks:
            _, hook = self._hooks.popitem(last=False)
            call(hook, model)


def call(hook: Hook, model: Any) -> None:
    """Call a hook with the model, and with the script's optimizer if it takes two arguments.

    AWS's later examples register `lambda model, optimizer: ...`; its documentation has hooks of one argument. The
    optimizer is the first `DistributedOptimizer` of the script, None before there is one.
    """
    optimizers = state.get().optimizers
    hook(model, *([optimizers[0] if optimizers else None] if _takes_two(hook) else []))


def _takes_two(hook: Hook) -> bool:
    try:
        parameters = inspect.signature(hook).parameters.values()
    except (TypeError, ValueError):
        # Functions of C extensions have no signature.
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    return len(required) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
