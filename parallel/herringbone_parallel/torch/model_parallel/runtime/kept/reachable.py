"""The state that the code of a step can reach besides its arguments: attributes, containers, variables, tensors.

    reach = Reach()
    reach.visit(model, "model")
    reach.visit(step_function, "step_function")
    reach.locations         # each can be read, compared and written

The search follows modules, their hooks, and the functions, classes and objects of the script. It does not enter
installed packages: their modules' attributes count, their globals do not.
"""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from operator import is_
from typing import Any

import torch
from torch import nn

MISSING = object()
# Of larger containers only the length and the ends are compared: they are data, or lists that grow.
LARGE = 1000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType)
_CONTAINERS = (OrderedDict, dict, list, set, deque)
# Of their classes, and of those of the script, the attributes count.
_NAMESPACES: tuple[type, ...] = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap)
_NAMESPACES += (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, threading.local)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
_OURS = __name__.partition(".")[0]
# What `nn.Module` itself keeps in every module. Hooks are the script's functions.
_OF_MODULES = set(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class Location:
    """One piece of state; `name` is the variable or attribute by which code gets at it, `target` what holds it.

    `seen` is the content at the last comparison, `line` the line that changed it, if known.
    """

    # Whether code of Python compares it; whether each thread has a content of its own.
    slow = of_thread = False

    def __init__(self, name: str, target: Any, key: Any = "") -> None:
        self.name, self.target, self.key = name, target, key
        self.line = ""
        self.seen = self.read()

    def read(self) -> Any:
        """Return the content: a copy of a container's, without a copy of its members."""
        return dict(self.target) if isinstance(self.target, Mapping) else list(self.target)

    def write(self, content: Any) -> None:
        """Put back a content that `read` has returned."""
        kind: Any = next(kind for kind in _CONTAINERS if isinstance(self.target, kind))
        kind.clear(self.target)
        (kind.extend if kind in (list, deque) else kind.update)(self.target, content)
        self.seen = content

    @property
    def large(self) -> bool:
        """Say whether only its length and its ends are compared."""
        return type(self) is Location and len(self.seen) > LARGE

    def changed(self) -> bool:
        """Say whether the content is another one than `seen`."""
        if self.large:
            return self._ends(self.target) != self._ends(self.seen)
        content = self.read()
        if type(content) not in (dict, list):
            return content is not self.seen
        if len(content) != len(self.seen) or not all(map(is_, content, self.seen)):
            return True
        return type(content) is dict and not all(map(is_, content.values(), self.seen.values()))

    @staticmethod
    def _ends(content: Any) -> tuple[int, ...]:
        members: Any = content.values() if isinstance(content, Mapping) else content
        ends = () if isinstance(content, set) else map(id, (next(iter(members), None), next(reversed(members), None)))
        return (len(content), *ends)


class Entry(Location):
    """The attribute or global variable `key` of the namespace `target`."""

    def read(self) -> Any:
        return self.target.get(self.key, MISSING)

    def write(self, content: Any) -> None:
        self.target.update({self.key: content})
        if content is MISSING:
            del self.target[self.key]
        self.seen = content


class Variable(Location):
    """A variable of an enclosing function; `target` is its cell."""

    def read(self) -> Any:
        try:
            return self.target.cell_contents
        except ValueError:
            return MISSING

    def write(self, content: Any) -> None:
        self.target.cell_contents = content
        self.seen = content


class ClassAttributes(Location):
    """The attributes of a class of the script."""

    def write(self, content: Any) -> None:
        for name, value in content.items():
            if vars(self.target).get(name, MISSING) is not value:
                setattr(self.target, name, value)
        for name in set(vars(self.target)) - set(content):
            delattr(self.target, name)
        self.seen = content

    def read(self) -> Any:
        return dict(vars(self.target))


class ContextValue(Location):
    """The value of a context variable."""

    slow = of_thread = True

    def read(self) -> Any:
        return self.target.get(MISSING)

    def write(self, content: Any) -> None:
        # A thread that has no value has never had one.
        if content is not MISSING:
            self.target.set(content)
        self.seen = content


class ThreadAttributes(Location):
    """The attributes of a `threading.local`."""

    slow = of_thread = True

    def read(self) -> Any:
        return dict(vars(self.target))

    def write(self, content: Any) -> None:
        own = vars(self.target)
        own.clear()
        own.update(content)
        self.seen = content


class Slots(Location):
    """The attributes of an object in the slots `key`, which are descriptors."""

    slow = True

    def read(self) -> Any:
        return {slot.__name__: slot.__get__(self.target) for slot in self.key if hasattr(self.target, slot.__name__)}

    def write(self, content: Any) -> None:
        for slot in self.key:
            if slot.__name__ in content:
                slot.__set__(self.target, content[slot.__name__])
            elif hasattr(self.target, slot.__name__):
                slot.__delete__(self.target)
        self.seen = content


class Version(Location):
    """The data of a tensor, which is written in place. It is compared, and never put back."""

    def read(self) -> Any:
        return self.target._version

    def write(self, content: Any) -> None:
        pass

    def changed(self) -> bool:
        return bool(self.target._version != self.seen)


class ArrayData(Location):
    """The data of an array of NumPy, of no tensor's memory."""

    slow = True

    def read(self) -> Any:
        return self.target.copy()

    def write(self, content: Any) -> None:
        self.target[...] = content
        self.seen = content

    def changed(self) -> bool:
        return bool(self.target.tobytes() != self.seen.tobytes())


class Reach:
    """The locations, and the code objects of functions, that were found so far."""

    def __init__(self, *, backward_hooks: bool = True, enter_modules: bool = True) -> None:
        self.locations: list[Location] = []
        self.codes: list[types.CodeType] = []
        self._backward_hooks = _BACKWARD_HOOKS if backward_hooks else ()
        self._enter_modules = enter_modules
        # By identity; the objects themselves keep the identities from being used again.
        self._visited: dict[Any, Any] = {}

    def visit(self, value: Any, name: str) -> None:
        """Find what can be reached from a value that code knows under this name."""
        waiting = [(value, name)]
        while waiting:
            value, name = waiting.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._visited:
                self._visited[id(value)] = value
                waiting.extend(self._children(value, name))

    def _children(self, value: Any, name: str) -> Iterable[tuple[Any, str]]:
        if isinstance(value, nn.Module):
            return self._of_module(value) if self._enter_modules else ()
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor and not value.is_inference():
                self.locations.append(Version(name, value))
            return ()
        if isinstance(value, tuple):
            return [(member, name) for member in value]
        if isinstance(value, _CONTAINERS):
            self.locations.append(Location(name, value))
            if len(value) > LARGE:
                return ()
            return [(member, name) for member in (value.values() if isinstance(value, dict) else value)]
        if isinstance(value, types.FunctionType):
            return self._of_function(value, name)
        if isinstance(value, types.MethodType):
            return [(value.__self__, name), (value.__func__, name)]
        if isinstance(value, functools.partial):
            return [(value.func, name), (value.args, name), (value.keywords, name)]
        if isinstance(value, type):
            return self._of_class(value, name)
        if isinstance(value, ContextVar):
            self.locations.append(ContextValue(name, value))
            return [(self.locations[-1].seen, name)]
        if type(value).__name__ == "ndarray":
            if value.flags.owndata and value.size <= LARGE:
                self.locations.append(ArrayData(name, value))
        elif isinstance(value, _NAMESPACES) or _of_script(type(value).__module__):
            return self._of_object(value, name)
        return ()

    def _of_object(self, value: Any, name: str) -> Iterable[tuple[Any, str]]:
        found: list[Location] = []
        if isinstance(value, threading.local):
            found.append(ThreadAttributes(name, value))
        elif hasattr(value, "__dict__"):
            found.append(Location(name, vars(value)))
        if slots := _slots(type(value)):
            found.append(Slots(name, value, slots))
        members = [member for location in found for member in location.seen.values()]
        if any(isinstance(member, _LOCKS) for member in members):
            # Other threads change it, too, so it belongs to no microbatch.
            return ()
        self.locations += found
        return [(type(value), name), *((member, name) for member in members)] if found else ()

    def _of_module(self, module: nn.Module) -> Iterator[tuple[Any, str]]:
        yield from ((child, name) for name, child in module._modules.items())
        if not type(module).__module__.startswith("torch."):
            yield type(module), ""
            yield from ((value, name) for name, value in vars(module).items() if name not in _OF_MODULES)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", *self._backward_hooks):
            yield from ((hook, hooks) for hook in vars(module)[hooks].values())

    def _of_function(self, function: types.FunctionType, known_as: str) -> Iterator[tuple[Any, str]]:
        self.codes.append(function.__code__)
        if not _of_script(function.__module__):
            return
        self.locations.append(Location(known_as, vars(function)))
        yield from ((value, known_as) for value in vars(function).values())
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            variable = Variable(name, cell)
            if id(cell) not in self._visited:
                self._visited[id(cell)] = cell
                self.locations.append(variable)
            yield variable.seen, name
        yield function.__defaults__, ""
        for name in loaded(function.__code__):
            value = function.__globals__.get(name, MISSING)
            if not isinstance(value, (types.FunctionType, types.ModuleType, types.BuiltinFunctionType, type)):
                key = id(function.__globals__), name
                if value is not MISSING and key not in self._visited:
                    self._visited[key] = value
                    self.locations.append(Entry(name, function.__globals__, name))
            # A constructor names the classes of modules that run elsewhere.
            if self._enter_modules or not (isinstance(value, type) and issubclass(value, nn.Module)):
                yield value, name

    def _of_class(self, kind: type, name: str) -> Iterator[tuple[Any, str]]:
        members = vars(kind).values()
        functions = [getattr(member, "__func__", getattr(member, "fget", member)) for member in members]
        yield from ((function, name) for function in functions if isinstance(function, types.FunctionType))
        yield from ((base, name) for base in kind.__bases__ if not base.__module__.startswith("torch."))
        if _of_script(kind.__module__):
            self.locations.append(ClassAttributes(name, kind))
            yield from ((m, n) for n, m in vars(kind).items() if isinstance(m, (*_CONTAINERS, torch.Tensor)))


def loaded(code: types.CodeType, until: int | None = None, *, stored: bool = False) -> set[str]:
    """Return the names and strings that code reads, of variables and attributes; `until` is an offset in it.

    With `stored` also those that it only writes.
    """
    names = set()
    for step in dis.get_instructions(code):
        if until is not None and step.offset >= until:
            break
        if step.opname.startswith(("LOAD", "STORE") if stored else "LOAD") and not step.opname.startswith(
            ("LOAD_FAST", "STORE_FAST")
        ):
            if isinstance(step.argval, str):
                names.add(step.argval)
            elif isinstance(step.argval, types.CodeType):
                names |= loaded(step.argval, stored=stored)
    return names


def read_by(function: Any, until: int | None, model: nn.Module | None) -> set[str]:
    """Return the names that a step function reads up to an offset in its code, or the code that it can reach."""
    reach = Reach(backward_hooks=False)
    reach.visit(model, "")
    code = function.__code__
    names = loaded(code, until)
    scope = {**function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        scope[name] = Variable(name, cell).seen
    for name in names & set(scope):
        reach.visit(scope[name], name)
    return names.union(*map(loaded, reach.codes))


def _slots(kind: type) -> list[Any]:
    """Return the descriptors of the slots of a class of the script."""
    return [
        member
        for base in kind.__mro__
        if _of_script(base.__module__)
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    ]


@functools.cache
def _of_script(name: str | None) -> bool:
    """Say whether a module is part of the script, and not of an installed package or of this library."""
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if name is None or name.partition(".")[0] == _OURS or (file is None and name != "__main__"):
        return False
    return file is None or not any(part in file for part in _INSTALLED)
