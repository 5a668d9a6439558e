"""A split `nn.Sequential` runs its neighbouring children on one rank as one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.placement.placement import Home
from herringbone_parallel.torch.model_parallel.runtime.microbatch import HOME_ATTRIBUTE, Microbatch, current
from herringbone_parallel.torch.model_parallel.runtime.randomness import seed_generators


class Unit(NamedTuple):
    """Children that run one after another on a rank, with their paths; `home` is that of the first child."""

    home: Home
    paths: tuple[str, ...]
    children: tuple[nn.Module, ...]


def join_children(model: nn.Module) -> None:
    """Let each split `nn.Sequential` of a placed model run in units, except those with their own `forward`."""
    for module in model.modules():
        plain = type(module).forward is nn.Sequential.forward and "forward" not in module.__dict__
        if plain and HOME_ATTRIBUTE not in module.__dict__:
            children = tuple(module.children())
            module.forward = partial(_forward, module, children, _units(children))


def _units(children: Sequence[nn.Module]) -> list[Unit | nn.Module]:
    """Return the children in order; those that can run together are one unit."""
    units: list[Unit | nn.Module] = []
    for child in children:
        home: Home | None = child.__dict__.get(HOME_ATTRIBUTE)
        last = units[-1] if units else None
        if home is None or (home.rank is None and not isinstance(last, Unit)):
            # The child is split, or has no parameters and may run on every rank, because its input may be everywhere.
            units.append(child)
        elif isinstance(last, Unit) and home.rank in (None, last.home.rank):
            units[-1] = Unit(last.home, (*last.paths, home.path), (*last.children, child))
        else:
            units.append(Unit(home, (home.path,), (child,)))
    return units


def _forward(
    sequential: nn.Module, children: tuple[nn.Module, ...], units: Sequence[Unit | nn.Module], value: Any
) -> Any:
    microbatch = current()
    # Outside of steps, and after the script has changed the children, torch's own way is right.
    if microbatch is None or tuple(sequential._modules.values()) != children:
        for child in sequential.children():
            value = child(value)
        return value
    for unit in units:
        value = _call(microbatch, unit, value) if isinstance(unit, Unit) else unit(value)
    return value


def _call(microbatch: Microbatch, unit: Unit, value: Any) -> Any:
    # A seed for each child, as if each were called by itself. They are drawn here and not in `_run`, because a
    # checkpointed unit runs twice.
    seeds = [microbatch.visits.seed(path) for path in unit.paths]
    function = partial(_run, unit, seeds)
    if microbatch.wrap is not None:
        function = microbatch.wrap(function)  # type: ignore[assignment]
    home = unit.home
    identity = (home.path, len(unit.children))
    return microbatch.call(home.path, home.rank, function, (value,), {}, identity, seeds[0])


def _run(unit: Unit, seeds: Sequence[int], value: Any) -> Any:
    for path, child, seed in zip(unit.paths, unit.children, seeds, strict=True):
        seed_generators(seed)
        try:
            value = child(value)
        except Exception as error:
            note_module(error, path)
            raise
    return value
