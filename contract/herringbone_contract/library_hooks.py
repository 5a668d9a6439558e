"""Hooks into libraries of others: the form of a list of them, the tested releases, and probes that each hook bites.

A hook sits at a place that its library may change in any release: a private name, or a function that ours replaces. A
hook that no longer bites gives wrong results without an error, so each of our libraries probes its own when it starts:

    HOOKS = (Hook("torch.autograd:_make_grads", "refuse backward of a placed tensor", reached(backward)),)
    require(HOOKS)              # raises HookError where a probe fails

Modules of the name `library_hooks` have the lists: one in each package that hooks into libraries of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import threading
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple

from herringbone_contract.errors import HookError


class Releases(NamedTuple):
    """The oldest, a middle and the newest release of a library that `scripts/nightly` tests."""

    oldest: str
    middle: str
    newest: str


# pyproject.toml's extras promise the same ranges.
TESTED = {
    "torch": Releases("2.6.0", "2.13.0", "2.15.0"),
    "tensorflow": Releases("2.16.2", "2.19.1", "2.21.0"),
    "transformers": Releases("4.57.6", "5.18.0", "5.23.0"),
    "accelerate": Releases("1.13.0", "1.14.0", "1.15.0"),
    "lightning": Releases("2.5.6", "2.6.1", "2.6.6"),
}


class Hook(NamedTuple):
    """One hook. `place` is `MODULE:NAME`, or `MODULE:CLASS.NAME`; `probe(place)` says whether it bites."""

    place: str
    reason: str
    probe: Callable[[str], bool]

    @property
    def library(self) -> str:
        """The library that has the place; Keras is a part of TensorFlow, and Lightning has two names."""
        name = self.place.partition(":")[0].partition(".")[0]
        return {"keras": "tensorflow", "pytorch_lightning": "lightning"}.get(name, name)


def require(hooks: Iterable[Hook]) -> None:
    """Raise `HookError` for the first hook that does not bite in the library that is installed."""
    for hook in hooks:
        if not _bites(hook):
            raise HookError(
                f"{hook.library} {installed(hook.library)} has changed {hook.place}, by which Herringbone has to"
                f" {hook.reason}; without it results would be wrong. {remedy(hook.library)}"
            )


def installed(library: str) -> str:
    """Return the version of a library of this Python."""
    for name in (library, f"{library}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of an unknown version"


def remedy(library: str) -> str:
    """Return the releases that are tested, and how to install the newest."""
    tested = TESTED[library]
    return (
        f"Tested are {tested.oldest} to {tested.newest}: name {library}=={tested.newest} in the job's requirements.txt"
    )


def _bites(hook: Hook) -> bool:
    try:
        return hook.probe(hook.place)
    except Exception:  # noqa: BLE001  any error of the probe's call: the library has changed
        return False


def exists(place: str) -> bool:
    """Say whether the name exists: for names that ours reads, whose absence would be an error at their first use."""
    owner, name = resolved(place)
    return hasattr(owner, name)


def reached(call: Callable[[], object]) -> Callable[[str], bool]:
    """Return the probe that runs a call of a public function, which has to come to the hook's place."""

    def probe(place: str) -> bool:
        owner, name = resolved(place)
        before = vars(owner)[name]
        bound = isinstance(before, classmethod)
        function, thread = before.__func__ if bound else before, threading.get_ident()

        def spy(*args: Any, **kwargs: Any) -> Any:
            # Threads of the script may come here at the same time.
            if threading.get_ident() != thread:
                return function(*args, **kwargs)
            raise _ReachedError

        setattr(owner, name, classmethod(spy) if bound else spy)
        try:
            call()
        except _ReachedError:
            return True
        finally:
            setattr(owner, name, before)
        return False

    return probe


class _ReachedError(BaseException):
    """Ends a probe's call at the hook's place; no library catches it."""


def named_in(caller: str) -> Callable[[str], bool]:
    """Return the probe that reads the code of the function `caller`, which has to name the hook's place.

    For calls that need a group, a model or a device.
    """

    def probe(place: str) -> bool:
        owner, name = resolved(place)
        holder, function = resolved(caller)
        code = getattr(holder, function)
        for inner in ("fget", "func"):  # of a property, and of a cached one
            code = getattr(code, inner, code)
        return hasattr(owner, name) and name in _names(inspect.unwrap(code).__code__)

    return probe


def is_set(place: str) -> bool:
    """Say whether the constructor of the place's class sets this attribute, which only its objects have."""
    owner, name = resolved(place)
    return name in _names(inspect.unwrap(owner.__init__).__code__)


def takes(*names: str) -> Callable[[str], bool]:
    """Return the probe that compares the parameters of the function at the hook's place, in their order."""

    def probe(place: str) -> bool:
        owner, name = resolved(place)
        parameters = inspect.signature(getattr(owner, name)).parameters
        return tuple(parameter for parameter in parameters if parameter in names) == names

    return probe


def resolved(place: str) -> tuple[Any, str]:
    """Return the module or class of a place, and the name in it."""
    module, _, path = place.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names, *(name for one in inner for name in _names(one))}
