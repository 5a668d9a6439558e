"""`sagemaker_containers.beta.framework`: the toolkit's modules by their older names.

    from sagemaker_containers.beta.framework import encoders, env
    env.TrainingEnv().model_dir
    encoders.decode(b"1,2", "text/csv")         # UnsupportedError: sagemaker_containers...encoders.decode: ...

One script has functions that train and functions that host. The names that host can be imported, and refuse to be
called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagemaker_training import entry_point, errors, files, functions, mapping, modules, params, runner, trainer
from sagemaker_training import environment as env

from herringbone import UnsupportedError
from sagemaker_containers import training_env

__all__ = [
    "entry_point", "env", "errors", "files", "functions", "mapping", "modules", "params", "runner", "trainer",
    "training_env",
]  # fmt: skip


class _Hosting:
    """A name that hosts, such as `worker` or `worker.Response`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Hosting(f"{self._path}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"{self._path}: Herringbone trains, and hosts nothing; a script may call this in functions that host, such"
            " as input_fn, and not where it trains"
        )


def hosting(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose other names host."""

    def find(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _Hosting(f"{module}.{name}")

    return find


__getattr__ = hosting(__name__)
