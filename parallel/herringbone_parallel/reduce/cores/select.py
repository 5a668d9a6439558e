"""Chooses the core: the compiled one if it is available, else the one in Python."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.cores.base import Core, CoreConfig
from herringbone_parallel.reduce.cores.python_core import PythonCore


def choose(name: str | None) -> str:
    """Return "native" or "python"; None chooses. Raises `ParallelError` for "native" without a compiled core.

    >>> choose("python")
    'python'
    """
    if name is None:
        return "python" if native.library() is None else "native"
    if name == "native" and native.library() is None:
        raise ParallelError(
            "there is no native core that runs here: `python -m herringbone_parallel.reduce.build` compiles it"
        )
    return name


def make(name: str, config: CoreConfig) -> Core:
    """Start the core of that name."""
    return native.NativeCore(config) if name == "native" else PythonCore(config)
