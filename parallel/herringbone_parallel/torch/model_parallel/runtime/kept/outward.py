"""Values that the code of one rank keeps and code of every rank reads: they leave the call as its results do.

A block that leaves its auxiliary loss on `self`, or a hook that puts its output into a dict, runs on the block's rank.
The step function, which runs on every rank, finds a placed tensor there.

    outward = Outward(model, split_modules, function, locations)
    result = outward.run(call)                  # on the rank that runs the call
    result = outward.put(result)                # on every rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.kept.reachable import (
    MISSING,
    ClassAttributes,
    Entry,
    Location,
    Reach,
    loaded,
)
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor

# What a call may pass on; other objects stay on their rank.
_PASSED = (type(None), bool, int, float, torch.Tensor)


class Kept(dict[str, Any]):
    """A call's result, under the empty name, and what it has kept, by name."""


class Outward:
    """The attributes and containers that code of every rank names.

    `set_here` are the attributes that code has set since a call began. Only the holder of the run token uses it.
    """

    def __init__(
        self, model: nn.Module | None, split: Iterable[nn.Module], function: Any, locations: Iterable[Location]
    ) -> None:
        self.set_here: dict[Entry, None] = {}
        reach = Reach(enter_modules=False)
        reach.visit(function, "")
        for module in split:
            reach.visit(type(module), "")
            reach.visit((*module._forward_hooks.values(), *module._forward_pre_hooks.values()), "")
        self._names = set().union(*(loaded(code, stored=True) for code in reach.codes))
        self._model = model
        modules = [] if model is None else list(model.named_modules())
        self._path_of = {id(of): path for path, inner in modules for of in (vars(inner), inner._buffers)}
        shared = [each for each in locations if self._is_shared(each)]
        self._containers = {f"{each.name} {n}": each for n, each in enumerate(shared)}

    def _is_shared(self, location: Location) -> bool:
        if type(location) is ClassAttributes:
            # Of the classes of blocks, which no code of every rank needs to name.
            return any(isinstance(value, _PASSED) for name, value in location.seen.items() if name[:2] != "__")
        return type(location) is Location and isinstance(location.target, (dict, list)) and location.name in self._names

    def run(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call together with what it has kept."""
        before = self._begin()
        return self._collect(before, call())

    def _begin(self) -> dict[str, Any]:
        """Return the containers' contents before a call."""
        self.set_here = {}
        return {label: location.read() for label, location in self._containers.items()}

    def _collect(self, before: dict[str, Any], result: Any) -> Any:
        """Return the result of the call together with what it has kept, and take back the changes of containers."""
        kept: dict[str, Any] = {}
        change: Any
        for entry in self.set_here:
            path, value = self._path_of.get(id(entry.target)), entry.read()
            if path is not None and entry.name in self._names and _passed(value):
                kept[f"{path}.{entry.name}"] = value
        for label, old in before.items():
            location = self._containers[label]
            new, change = location.read(), None
            if isinstance(new, list):
                pairs = zip(old, new, strict=False)
                same = next((n for n, (a, b) in enumerate(pairs) if a is not b), min(len(old), len(new)))
                change = [same, *new[same:]] if max(len(old), len(new)) > same else None
            else:
                changed = {key: value for key, value in new.items() if old.get(key, MISSING) is not value}
                gone = [key for key in old if key not in new]
                change = (changed, gone) if changed or gone else None
            if change is not None and _passed(change):
                location.write(old)
                kept[label] = change
        return Kept({"": result}, **kept) if kept else result

    def put(self, kept: Any) -> Any:
        """Keep on this rank what the call has kept, and return the call's result."""
        if type(kept) is not Kept:
            return kept
        for label, value in kept.items():
            if label in self._containers:
                target = self._containers[label].target
                if isinstance(target, list):
                    target[value[0] :] = value[1:]
                elif isinstance(target, type):
                    for key, item in value[0].items():
                        setattr(target, key, item)
                    for key in value[1]:
                        delattr(target, key)
                else:
                    # One by one: the `update` of a Counter adds.
                    for key, item in value[0].items():
                        target[key] = item
                    for key in value[1]:
                        target.pop(key, None)
            elif label and self._model is not None:
                path, _, name = label.rpartition(".")
                setattr(self._model.get_submodule(path), name, value)
        return kept[""]


def _passed(value: Any) -> bool:
    # A placed tensor came in from outside of the call.
    return all(isinstance(leaf, (*_PASSED, str)) and not isinstance(leaf, PlacedTensor) for leaf in leaves_of(value))
