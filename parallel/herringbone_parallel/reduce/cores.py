"""Which core moves the bytes: the compiled one where there is one, else the one in Python."""

from __future__ import annotations

from herringbone_parallel.reduce.core import Core, CoreConfig
from herringbone_parallel.reduce.fallback import FallbackCore
from herringbone_spec.errors import ParallelError


def choose(wish: str | None) -> str:
    """Return "native" or "python". Raises `ParallelError` where native is wished for and was not compiled."""
    if wish == "native":
        raise ParallelError("not compiled")
    return "python"


def make(name: str, config: CoreConfig) -> Core:
    """Start a core."""
    assert name == "python"
    return FallbackCore(config)
