"""torch's thread-local modes, grad mode and autocast: read in the caller's thread, entered in a microbatch's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch


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
