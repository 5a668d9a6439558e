"""An `nn.Sequential` that is split: its neighbouring children on one rank are one call, not one each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.placement.placement import HOME_ATTRIBUTE, Home
from herringbone_parallel.torch.model_parallel.runtime.microbatch import Microbatch, current
from herringbone_parallel.torch.model_parallel.runtime.randomness import start_stream


class Unit(NamedTuple):
    """Children that run one after another on a rank, each with its path; `home` is the first one's."""

    home: Home
    paths: tuple[str, ...]
    children: tuple[nn.Module, ...]


def join_children(model: nn.Module) -> None:
    """Let each split `nn.Sequential` of a placed model run in units; one with a `forward` of its own stays as it is."""
    for module in model.modules():
        plain = type(module).forward is nn.Sequential.forward and "forward" not in module.__dict__
        if plain and HOME_ATTRIBUTE not in module.__dict__:
            children = tuple(module.children())
            module.forward = partial(_forward, module, children, _units(children))


def _units(children: Sequence[nn.Module]) -> list[Unit | nn.Module]:
    """Return the children in order, those that can run together as one unit."""
    found: list[Unit | nn.Module] = []
    for child in children:
        home: Home | None = child.__dict__.get(HOME_ATTRIBUTE)
        last = found[-1] if found else None
        if home is None or (home.rank is None and not isinstance(last, Unit)):
            # It is split itself, or may run on every rank, as its input may be on every rank.
            found.append(child)
        elif isinstance(last, Unit) and home.rank in (None, last.home.rank):
            found[-1] = Unit(last.home, (*last.paths, home.path), (*last.children, child))
        else:
            found.append(Unit(home, (home.path,), (child,)))
    return found


def _forward(
    sequential: nn.Module, children: tuple[nn.Module, ...], units: Sequence[Unit | nn.Module], value: Any
) -> Any:
    microbatch = current()
    if microbatch is None or tuple(sequential._modules.values()) != children:
        for child in sequential.children():
            value = child(value)
        return value
    for unit in units:
        value = _call(microbatch, unit, value) if isinstance(unit, Unit) else unit(value)
    return value


def _call(microbatch: Microbatch, unit: Unit, value: Any) -> Any:
    # Random numbers as if each were called by itself, and drawn here: a checkpointed unit runs twice.
    seeds = [microbatch.seed(path) for path in unit.paths]
    function = partial(_run, unit, seeds)
    if microbatch.wrap is not None:
        function = microbatch.wrap(function)  # type: ignore[assignment]
    home = unit.home
    identity = (home.path, len(unit.children))
    return microbatch.call(home.path, home.rank, function, (value,), {}, identity, seeds[0])


def _run(unit: Unit, seeds: Sequence[int], value: Any) -> Any:
    for path, child, seed in zip(unit.paths, unit.children, seeds, strict=True):
        start_stream(seed)
        try:
            value = child(value)
        except Exception as error:
            note_module(error, path)
            raise
    return value
