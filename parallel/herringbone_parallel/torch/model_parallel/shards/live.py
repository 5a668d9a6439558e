"""Units that are gathered when a module uses them, so that few elements are gathered at a time.

A unit belongs to a module. While the module runs, and while its backward runs, the unit is held. A unit that is not
held stays gathered until another one needs its room; the least recently used one is freed first.

    forward     before the module's call        gather, hold
                after it                        release; watch the gradients of its results
    backward    a result's gradient is there    gather, hold
                all parameters' gradients are   reduce them, release
                the backward has ended          release all others

Gathering is collective: all ranks of the group must call the modules in the same order. A parameter that code uses
outside of its module's call is gathered by that use, and held until the step ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.placed import METADATA
from herringbone_parallel.torch.model_parallel.shards.layout import Named, cut_runs
from herringbone_parallel.torch.model_parallel.shards.unit import Unit

_attribute: Any = torch.Tensor
# Calls that need no values.
_WITHOUT_VALUES = {
    *METADATA,
    torch.Tensor.requires_grad_, torch.Tensor.stride, torch.Tensor.is_contiguous,
    torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook,
    *(getattr(_attribute, name).__get__ for name in ("grad", "nbytes", "retains_grad")),
    *(getattr(_attribute, name).__set__ for name in ("grad", "requires_grad", "data")),
}  # fmt: skip
# The attributes of an absent parameter: what gathers it, and its unit.
_LIVE, _UNIT = "_smp_live_units", "_smp_unit"


class AbsentParameter(nn.Parameter):
    """A parameter that is not gathered; an operation on it gathers it first."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _WITHOUT_VALUES:
            for leaf in leaves_of((args, kwargs)):
                if isinstance(leaf, AbsentParameter):
                    getattr(leaf, _LIVE).keep(getattr(leaf, _UNIT))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


class LiveUnits:
    """Gathers and frees the units of one rank, of which `most` elements may be gathered at a time.

        live = LiveUnits([(module, unit), ...], most=1_000_000)
        live.begin()                    # the units are open
        ...                             # forwards and backwards; `live.backward_ended()` after each backward
        live.end()

    If the units that are held need more, more are gathered. `peak` is the largest number of elements so far.
    """

    def __init__(self, units: Sequence[tuple[nn.Module, Unit]], most: int) -> None:
        self._units = [unit for _, unit in units]
        self._most = most
        self._active = False
        self._gathered: OrderedDict[Unit, None] = OrderedDict()
        self._elements = 0
        self.peak = 0
        # By unit: the number of calls under way. Units whose backward is under way, and those held for the whole step.
        self._calls = dict.fromkeys(self._units, 0)
        self._backwards: set[Unit] = set()
        self._kept: set[Unit] = set()
        # By unit: its parameters whose gradients have not come in this backward.
        self._missing: dict[Unit, set[int]] = {}
        self._classes = {id(parameter): type(parameter) for unit in self._units for parameter in unit.parameters}
        by_module: dict[nn.Module, list[Unit]] = {}
        for module, unit in units:
            by_module.setdefault(module, []).append(unit)
        self._handles: list[Any] = []
        for module, own in by_module.items():
            self._handles.append(module.register_forward_pre_hook(partial(self._before, own)))
            self._handles.append(module.register_forward_hook(partial(self._after, own), always_call=True))
        for unit in self._units:
            for parameter in unit.parameters:
                if parameter.requires_grad:
                    hook = partial(self._on_gradient, unit)
                    self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Start a step, with all units open and none gathered."""
        self._active = True
        for unit in self._units:
            self._hide(unit)

    def end(self) -> None:
        """End a step: all units are free."""
        self.backward_ended()
        self._kept.clear()
        self._calls = dict.fromkeys(self._units, 0)
        for unit in list(self._gathered):
            self._free(unit)
        for unit in self._units:
            self._show(unit)
        self._active = False

    def backward_ended(self) -> None:
        """Release the units whose gradients did not all come; these are reduced when the step ends."""
        self._backwards.clear()
        self._missing.clear()

    def retire(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def keep(self, unit: Unit) -> None:
        """Gather a unit whose parameters are used outside of its module's call, until the step ends."""
        # Nothing tells when the backward uses such a parameter.
        self._kept.add(unit)
        self._require(unit)

    def _before(self, units: Sequence[Unit], _module: nn.Module, _args: Any) -> None:
        if self._active:
            for unit in units:
                self._calls[unit] += 1
                self._require(unit)

    def _after(self, units: Sequence[Unit], _module: nn.Module, _args: Any, results: Any) -> None:
        if not self._active:
            return
        for unit in units:
            # A step that failed has ended, and an error that unwinds through the module comes here afterwards.
            self._calls[unit] = max(0, self._calls[unit] - 1)
        for leaf in leaves_of(results):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(partial(self._on_result, units))  # type: ignore[no-untyped-call]

    def _on_result(self, units: Sequence[Unit], _gradient: torch.Tensor) -> None:
        """Gather units whose module's backward comes next."""
        if self._active:
            for unit in units:
                self._backwards.add(unit)
                self._require(unit)

    def _on_gradient(self, unit: Unit, parameter: torch.Tensor) -> None:
        if not self._active:
            return
        if unit not in self._missing:
            self._missing[unit] = {id(other) for other in unit.parameters}
        missing = self._missing[unit]
        missing.discard(id(parameter))
        # A frozen parameter is missing until the end, because its values may be used after the other gradients came.
        if not missing:
            unit.reduce()
            self._backwards.discard(unit)
            del self._missing[unit]

    def _require(self, unit: Unit) -> None:
        if unit in self._gathered:
            self._gathered.move_to_end(unit)
            return
        for other in list(self._gathered):
            if self._elements + unit.elements <= self._most:
                break
            if not (self._calls[other] or other in self._backwards or other in self._kept):
                self._free(other)
                self._hide(other)
        self._show(unit)
        unit.gather()
        self._gathered[unit] = None
        self._elements += unit.elements
        self.peak = max(self.peak, self._elements)

    def _free(self, unit: Unit) -> None:
        unit.free()
        del self._gathered[unit]
        self._elements -= unit.elements

    def _hide(self, unit: Unit) -> None:
        for parameter in unit.parameters:
            parameter.__class__ = AbsentParameter
            setattr(parameter, _LIVE, self)
            setattr(parameter, _UNIT, unit)

    def _show(self, unit: Unit) -> None:
        for parameter in unit.parameters:
            if isinstance(parameter, AbsentParameter):
                parameter.__class__ = self._classes[id(parameter)]  # type: ignore[assignment]
                delattr(parameter, _LIVE)
                delattr(parameter, _UNIT)


def cut_modules(module: nn.Module, wanted: Named, most: int) -> list[tuple[nn.Module, Named]]:
    """Cut parameters into runs of at most `most` elements, each with the module whose call uses all of them.

    A module with at most `most` elements has one run, or one for each dtype. In a larger one, each child has its own,
    and its code's own parameters have others. A parameter that several modules share belongs to the one around them.
    """
    names = {id(parameter): name for name, parameter in wanted}
    homes: dict[int, str] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        for parameter in inner._parameters.values():
            if parameter is not None and id(parameter) in names:
                home = homes.setdefault(id(parameter), path)
                homes[id(parameter)] = _around(home, path)
    runs: list[tuple[nn.Module, Named]] = []

    def add(owner: nn.Module, named: Named) -> None:
        runs.extend((owner, run) for run in cut_runs(named, most))

    def visit(path: str, owner: nn.Module) -> None:
        prefix = f"{path}." if path else ""
        below = [
            (name, parameter)
            for name, parameter in wanted
            if homes[id(parameter)] == path or homes[id(parameter)].startswith(prefix)
        ]
        if sum(parameter.numel() for _, parameter in below) <= most:
            add(owner, below)
            return
        add(owner, [(name, parameter) for name, parameter in below if homes[id(parameter)] == path])
        for name, child in owner.named_children():
            visit(prefix + name, child)

    visit("", module)
    return runs


def _around(one: str, other: str) -> str:
    """Return the path of the innermost module that is around both.

    >>> _around("layers.0.a", "layers.0.b"), _around("a", "b"), _around("a", "a.b")
    ('layers.0', '', 'a')
    """
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(own for own, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
