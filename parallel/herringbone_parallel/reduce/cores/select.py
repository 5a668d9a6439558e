"""Which core moves the bytes: the compiled one where there is one, else the one in Python."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.cores.base import Core, CoreConfig
from herringbone_parallel.reduce.cores.python_core import FallbackCore


def choose(wish: str | None) -> str:
    """Return "native" or "python". Raises `ParallelError` where native is wished for and there is none.

    >>> choose("python")
    'python'
    """
    if wish is None:
        return "python" if native.library() is None else "native"
    if wish == "native" and native.library() is None:
        raise ParallelError(
            "there is no native core that runs here: `python -m herringbone_parallel.reduce.build` compiles it"
        )
    return wish


def make(name: str, config: CoreConfig) -> Core:
    """Start a core."""
    return native.NativeCore(config) if name == "native" else FallbackCore(config)
