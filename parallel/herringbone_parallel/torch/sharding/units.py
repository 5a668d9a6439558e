"""Choose the modules whose parameters are gathered and freed together: the blocks of a model.

    units(model)        # ["encoder.layers.0", "encoder.layers.1"] of a transformer

Pure: it reads the module tree, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MethodType

from torch import nn

from herringbone_contract.errors import ParallelError

_LISTS = (nn.ModuleList, nn.Sequential)


def units(model: nn.Module, classes: Iterable[type[nn.Module]] | None = None) -> dict[str, nn.Module]:
    """Return the modules that `shard` splits one by one, by name; the root takes the parameters that are left.

    Without `classes`, these are the children of the outermost lists and sequences. A child that shares a parameter with
    a module outside of it is left to the root, because torch would split the two uses separately. Without any class,
    the root takes all. Raises `ParallelError` if no module is of one of the `classes`.
    """
    if classes is None:
        candidates = dict(_in_outermost_lists(model, ""))
    else:
        kinds = tuple(classes)
        candidates = {name: module for name, module in model.named_modules() if name and isinstance(module, kinds)}
        if kinds and not candidates:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ParallelError(f"the model has no module of the classes to shard one by one: {names}")
    return {
        name: module
        for name, module in candidates.items()
        if any(True for _ in module.parameters()) and not shares_parameters(model, name)
    }


def _in_outermost_lists(module: nn.Module, prefix: str, inside: bool = False) -> Iterator[tuple[str, nn.Module]]:
    is_list = inside or isinstance(module, _LISTS)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        # A container in a list, such as a ModuleDict, has no forward of its own, so its children are the blocks.
        if is_list and child.forward != MethodType(nn.Module.forward, child):
            yield path, child
        else:
            yield from _in_outermost_lists(child, f"{path}.", is_list)


def shares_parameters(model: nn.Module, name: str) -> bool:
    """Say whether the module of this name has a parameter that a module outside of it has, too."""
    inside = f"{name}."
    uses: dict[int, set[bool]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        uses.setdefault(id(parameter), set()).add(path.startswith(inside))
    return any(len(places) > 1 for places in uses.values())
