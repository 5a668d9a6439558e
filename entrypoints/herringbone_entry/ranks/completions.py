"""Let a module of Herringbone complete a library once the script has imported it.

    install(os.environ)

A script that does not import the library pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

# Variable that the launcher sets -> module of a library -> module of ours whose `complete()` then runs.
COMPLETIONS = {
    "HERRINGBONE_ACCELERATE": {
        "accelerate.accelerator": "herringbone_parallel.torch.sharding.accelerate",
        "transformers.trainer": "herringbone_parallel.torch.sharding.trainer",
    }
}


def install(environ: Mapping[str, str]) -> None:
    """Call `complete()` of our module after the import of each library's module that this job's variables name."""
    for variable, completions in COMPLETIONS.items():
        if variable in environ:
            for name, ours in completions.items():
                sys.meta_path.insert(0, _After(name, ours))


class _After:
    """A finder that changes one thing: the module `name` is followed by a call of ours."""

    def __init__(self, name: str, ours: str) -> None:
        self._name = name
        self._ours = ours

    def find_spec(self, name: str, *_: object) -> Any:
        """Return None, so that Python asks the next finder; for that one module, its specification."""
        if name != self._name:
            return None
        from importlib import import_module
        from importlib.util import find_spec

        # Once is enough, and the next line asks all finders.
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                import_module(self._ours).complete()

            loader.__dict__["exec_module"] = exec_module
        return spec
