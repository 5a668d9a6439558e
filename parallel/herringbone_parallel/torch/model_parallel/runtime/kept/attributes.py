"""Tells a running step which attributes of modules its code sets, and the library when others have set objects."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import nn

_SIMPLE = (type(None), bool, int, float, str, torch.Tensor)
_set_attribute, _delete_attribute = nn.Module.__setattr__, nn.Module.__delattr__
_register_buffer = nn.Module.register_buffer


class Noting(Protocol):
    """Notes what code of a step sets."""

    def note(self, module: nn.Module, name: str, namespace: dict[str, Any] | None = None) -> None:
        """Note that code is about to set an attribute of a module."""


# That of the microbatch that holds the run token; and a count of the objects that were set outside of steps.
active: Noting | None = None
objects_set = 0


def watch_attributes() -> None:
    """Let a running step know which attributes of modules its code sets."""
    nn.Module.__setattr__, nn.Module.__delattr__ = _noting_set, _noting_delete  # type: ignore[method-assign]
    nn.Module.register_buffer = _noting_buffer  # type: ignore[method-assign]


def _noting_set(self: nn.Module, name: str, value: Any) -> None:
    global objects_set
    if active is not None:
        active.note(self, name)
    elif not isinstance(value, _SIMPLE):
        objects_set += 1
    _set_attribute(self, name, value)


def _noting_delete(self: nn.Module, name: str) -> None:
    if active is not None:
        active.note(self, name)
    _delete_attribute(self, name)


@functools.wraps(_register_buffer)
def _noting_buffer(self: nn.Module, name: str, *args: Any, **kwargs: Any) -> None:
    if active is not None:
        active.note(self, name, self._buffers)
    _register_buffer(self, name, *args, **kwargs)
