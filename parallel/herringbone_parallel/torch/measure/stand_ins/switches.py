"""Turn off what tensors without values cannot serve: torch's compiler, fast paths, and checks of values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from herringbone_parallel.torch.measure.replacing import nothing, replaced


class OptimizedModule(nn.Module):
    """Stands for the module that `torch.compile` returns, under the same name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._modules["_orig_mod"], name) if name != "_orig_mod" else super().__getattr__(name)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let scripts call `torch.compile` in the `with` block; nothing is compiled, which would take minutes."""
    with replaced(torch, compile=_compile), replaced(nn.Module, compile=nothing):
        yield


def _compile(model: Any = None, **_options: Any) -> Any:
    if model is None:
        # With options alone it is a decorator.
        return _compile
    return OptimizedModule(model) if isinstance(model, nn.Module) else model


@contextmanager
def unchecked() -> Iterator[None]:
    """Turn off checks of values that are not computed, and paths of inference that use nested tensors."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with replaced(Distribution, _validate_args=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
