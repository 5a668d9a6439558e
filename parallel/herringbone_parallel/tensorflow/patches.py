"""Attributes that replace others, and their restoration."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ABSENT = object()


def defining_class(kind: type, name: str) -> Any:
    """Return the class, among a class and its bases, that defines an attribute itself.

    >>> defining_class(bool, "real").__name__
    'int'
    """
    return next(base for base in kind.__mro__ if name in vars(base))


class Patches:
    """Sets attributes and remembers the values that they replace.

    >>> patches = Patches()
    >>> class Car: wheels = 3
    >>> patches.set(Car, "wheels", 4); Car.wheels
    4
    >>> patches.undo(); Car.wheels
    3
    """

    def __init__(self) -> None:
        # Owner, name, value before. An entry of `sys.modules` has the owner None.
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module; an inherited attribute reappears after `undo`."""
        # `vars`, not `getattr`: a copy of an inherited attribute would stay on the class after `undo`.
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def module(self, parent: ModuleType, name: str, members: dict[str, Any]) -> ModuleType:
        """Return the module of this name in `parent`; creates one that can be imported if there is none."""
        existing = getattr(parent, name, None)
        if isinstance(existing, ModuleType):
            return existing
        module = ModuleType(f"{parent.__name__}.{name}")
        module.__dict__.update(members)
        # Only a package has a path, and `from a.b import c` looks for submodules in a package only.
        module.__path__ = []
        self.set(parent, name, module)
        self._before.append((None, module.__name__, sys.modules.get(module.__name__, _ABSENT)))
        sys.modules[module.__name__] = module
        return module

    def undo(self) -> None:
        """Restore everything, the last change first."""
        while self._before:
            owner, name, before = self._before.pop()
            if owner is None:
                sys.modules.pop(name, None) if before is _ABSENT else sys.modules.__setitem__(name, before)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
