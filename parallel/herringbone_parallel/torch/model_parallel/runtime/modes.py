"""torch's thread-local modes, grad mode and autocast: read in the caller's thread, entered in a microbatch's thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

# torch 2.6 and 2.7 do not tell their hooks.
_saved_tensors_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)


class Modes(NamedTuple):
    """Grad mode, and the dtype of autocast for each device type on which autocast is on."""

    grad: bool
    autocast: tuple[tuple[str, torch.dtype], ...]


def thread_modes() -> Modes:
    """Return the modes of the calling thread."""
    # Every call of a microbatch asks, so the usual case, no autocast at all, returns early.
    if not torch.is_autocast_enabled() and not torch.is_autocast_enabled("cpu"):
        return Modes(torch.is_grad_enabled(), ())
    autocast = [
        (device, torch.get_autocast_dtype(device)) for device in ("cuda", "cpu") if torch.is_autocast_enabled(device)
    ]
    return Modes(torch.is_grad_enabled(), tuple(autocast))


@contextmanager
def entered(modes: Modes) -> Iterator[None]:
    """Enter the modes in the calling thread for the length of a `with` block."""
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for device, dtype in modes.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def with_surroundings(body: Callable[[int], None]) -> Callable[[int], None]:
    """Return `body` with what surrounds the caller: context variables, function modes, hooks of saved tensors."""
    modes, context = thread_modes(), contextvars.copy_context()
    functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    hooks = _saved_tensors_hooks(True)

    def surrounded(index: int) -> None:
        with ExitStack() as stack:
            for mode in functions:
                _push_mode(mode)  # type: ignore[no-untyped-call]
                stack.callback(_pop_mode)
            if hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            with entered(modes):
                body(index)

    # Each thread needs a context of its own.
    return lambda index: context.copy().run(surrounded, index)
