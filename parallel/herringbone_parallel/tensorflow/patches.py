"""Attributes put in the place of others, and back again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ABSENT = object()


def defining(kind: type, name: str) -> Any:
    """Return the class, among those that a class is made of, which has an attribute itself.

    >>> defining(bool, "real").__name__
    'int'
    """
    return next(each for each in kind.__mro__ if name in vars(each))


class Patches:
    """Remembers what it replaces.

    >>> patches = Patches()
    >>> class Car: wheels = 3
    >>> patches.set(Car, "wheels", 4); Car.wheels
    4
    >>> patches.undo(); Car.wheels
    3
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module; what it inherits shows again afterwards."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def module(self, parent: ModuleType, name: str, members: dict[str, Any]) -> ModuleType:
        """Make a module that can be imported as a part of `parent`, unless that has one of this name."""
        found = getattr(parent, name, None)
        if isinstance(found, ModuleType):
            return found
        made = ModuleType(f"{parent.__name__}.{name}")
        made.__dict__.update(members)
        # A package, so that `from a.b import c` looks for parts of it.
        made.__path__ = []
        self.set(parent, name, made)
        self._before.append((None, made.__name__, sys.modules.get(made.__name__, _ABSENT)))
        sys.modules[made.__name__] = made
        return made

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._before:
            owner, name, before = self._before.pop()
            if owner is None:
                sys.modules.pop(name, None) if before is _ABSENT else sys.modules.__setitem__(name, before)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
