"""Act on a module as soon as the script has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder that calls `act(module)` when the script has imported the module `name`.

    sys.meta_path.insert(0, AfterImport("library.part", complete))

    A script that does not import the module pays nothing.
    """

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(self, name: str, *_: object) -> Any:
        """Return None, so that Python asks the next finder; for that one module, its specification."""
        if name != self._name:
            return None
        from importlib.util import find_spec

        # Once is enough, and the next line asks all finders.
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._act(module)

            loader.__dict__["exec_module"] = exec_module
        return spec
