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
        self.name = name
        self.act = act

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return None, so that Python asks the next finder; for that one module, its specification.

        Libraries also look for modules that they do not import, so this finder stays until the module has run.
        """
        if name != self.name:
            return None
        # A list that another thread may change meanwhile.
        finders = list(sys.meta_path)
        after = finders[finders.index(self) + 1 :] if self in finders else ()
        found = (finder.find_spec(name, path, target) for finder in after if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                # Once is enough.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.act(module)

            loader.__dict__["exec_module"] = exec_module
        return spec
