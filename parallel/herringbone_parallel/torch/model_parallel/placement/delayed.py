"""Parameters whose values are made later, on the rank that keeps them: until then they are on the `meta` device.

While a model is made inside `smp.delay_param_initialization`, every call of torch goes by a function mode:

    weight = torch.empty(4096, 4096)                a factory: noted, by the storage it has made
    self.weight = nn.Parameter(weight)              registered: moved to `meta`, with a `Recipe` on it
    nn.init.normal_(self.weight, std=0.02)          a write: added to the recipe, with a seed of its own
    self.weight.data[0].zero_()                     so are writes into a part of it

What a recipe cannot tell stays as it is: a parameter computed from other tensors has its values at once, on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import isfunction
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.placed import METADATA
from herringbone_parallel.torch.model_parallel.runtime.randomness import draw_seed, seed_of, seeded

# On a delayed parameter: how to make its values, and the parameter that has them.
_RECIPE = "_smp_recipe"
_MADE = "_smp_made"
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
# Its attributes have getters and setters that its type does not tell of.
_attribute: Any = torch.Tensor
_VIEWS = {
    _attribute.data.__get__, torch.Tensor.detach, torch.Tensor.__getitem__, torch.Tensor.t, _attribute.T.__get__,
    torch.Tensor.view, torch.Tensor.transpose, torch.Tensor.narrow, torch.Tensor.select, torch.Tensor.unsqueeze,
}  # fmt: skip
_HARMLESS = {
    *METADATA,
    torch.Tensor.requires_grad_,
    _attribute.requires_grad.__set__,
    _attribute.grad.__set__,
    torch.Tensor.stride,
    torch.Tensor.is_contiguous,
    torch.Tensor.storage_offset,
    torch.Tensor.untyped_storage,
}
# What it will be: code that asks makes its other tensors accordingly.
_WHERE: dict[Any, Any] = {_attribute.device.__get__: torch.device("cpu"), _attribute.is_meta.__get__: False}

Call = Callable[[torch.Tensor], Any]


@dataclass
class Recipe:
    """How to make a parameter's values: `make`, then each write with its seed, on the whole or through `views`."""

    make: Callable[[], torch.Tensor]
    seed: int
    writes: list[tuple[int, tuple[Call, ...], Call]] = field(default_factory=list)

    def cook(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the values, on the CPU."""
        with torch.no_grad():
            with seeded(self.seed):
                whole = self.make()
            for seed, views, write in self.writes:
                target = whole
                for view in views:
                    target = view(target)
                with seeded(seed):
                    write(target)
        return whole.to(dtype)


@contextmanager
def delaying() -> Iterator[None]:
    """Delay the values of the parameters made in the `with` block."""
    recorder = _Recorder(draw_seed())
    register = nn.Module.register_parameter

    def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param if param is None else recorder.delay(param))

    # Some of torch.nn.init's functions never begin on `meta`. One imported by its name reaches an inner one.
    fillers = {name: filler for name, filler in vars(nn.init).items() if name.endswith("_") and isfunction(filler)}
    nn.Module.register_parameter = registered  # type: ignore[method-assign]
    vars(nn.init).update({name: recorder.noting(filler) for name, filler in fillers.items()})
    try:
        with recorder:
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        vars(nn.init).update(fillers)


def any_delayed(module: nn.Module) -> bool:
    """Say whether a parameter of the module has no values yet."""
    return any(hasattr(parameter, _RECIPE) for parameter in module.parameters())


def make_values(module: nn.Module, assigned: Mapping[str, int] | None = None, rank: int = 0) -> None:
    """Make the values of the delayed parameters that are assigned to `rank`, or of all."""
    made: dict[int, nn.Parameter] = {}
    for path, inner in module.named_modules():
        if assigned is not None and assigned.get(path) != rank:
            continue
        for name, parameter in list(inner._parameters.items()):
            recipe: Recipe | None = getattr(parameter, _RECIPE, None)
            if parameter is None or recipe is None:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(recipe.cook(parameter.dtype), parameter.requires_grad)
                setattr(parameter, _MADE, made[id(parameter)])
            # By name: recurrent layers keep a list of their own.
            setattr(inner, name, made[id(parameter)])


def with_values(parameter: torch.Tensor) -> torch.Tensor:
    """Return what has taken a delayed parameter's place; any other one, or one that still waits, as it is."""
    made: torch.Tensor = getattr(parameter, _MADE, parameter)
    return made


class _Recorder(TorchFunctionMode):
    """Watches the making of a model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._calls = 0
        # By storage; the weak reference keeps the address from being used again.
        self._fresh: dict[int, tuple[StorageWeakRef, Recipe]] = {}
        # Delayed parameters, and views of them with how they were taken. A tensor that is kept keeps its id.
        self._known: dict[int, tuple[torch.Tensor, Recipe, tuple[Call, ...]]] = {}

    def delay(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter on `meta`, or itself when nobody can tell how its values came about."""
        found = self._fresh.pop(_storage(parameter), None)
        if found is None:
            return parameter
        recipe = found[1]
        with torch._C.DisableTorchFunction():
            delayed = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        setattr(delayed, _RECIPE, recipe)
        self._known[id(delayed)] = (delayed, recipe, ())
        return delayed

    def noting(self, filler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `torch.nn.init` that a delayed parameter notes, as one write."""

        @wraps(filler)
        def fill(*args: Any, **kwargs: Any) -> Any:
            tensor, rest = (args[0], args[1:]) if args else (kwargs.pop("tensor"), ())
            if id(tensor) in self._known:
                return self._on_delayed(filler, (tensor, *rest), kwargs, only=True)
            return filler(tensor, *rest, **kwargs)

        return fill

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not args and "tensor" in kwargs:
            # torch.nn.init hands itself on, wrapped by `noting` or not, with all arguments named.
            func, args = getattr(func, "__wrapped__", func), (kwargs.pop("tensor"),)
        tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func in _FACTORIES and not tensors:
            return self._made(func, args, kwargs)
        delayed = [tensor for tensor in tensors if id(tensor) in self._known]
        if delayed and func in _WHERE:
            return _WHERE[func]
        if func in _HARMLESS or not tensors:
            return func(*args, **kwargs)
        if not delayed:
            for tensor in tensors:
                self._fresh.pop(_storage(tensor), None)
            return func(*args, **kwargs)
        return self._on_delayed(func, args, kwargs, only=len(delayed) == 1 and len(args) > 0 and args[0] is delayed[0])

    def _made(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        self._calls += 1
        recipe = Recipe(partial(func, *args, **kwargs), seed_of(self._seed, self._calls))
        with seeded(recipe.seed):
            tensor: torch.Tensor = func(*args, **kwargs)
        recipe.make = partial(func, *args, **{**kwargs, "dtype": tensor.dtype, "requires_grad": False})
        if tensor.device.type == "cpu":
            self._fresh[_storage(tensor)] = (
                StorageWeakRef(tensor.untyped_storage()),  # type: ignore[no-untyped-call]
                recipe,
            )
        return tensor

    def _on_delayed(self, func: Any, args: Any, kwargs: Any, *, only: bool) -> Any:
        name = getattr(func, "__name__", str(func))
        written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if not only or not (written or func in _VIEWS):
            raise ParallelError(
                f"{name} needs the values of a parameter inside smp.delay_param_initialization, where it has none yet."
                " Fill it with torch.nn.init or with in-place operations that read nothing but constants, or make"
                " this part of the model outside"
            )
        tensor, recipe, views = self._known[id(args[0])]
        call: Call = partial(_applied, func, args[1:], kwargs)
        if not written:
            view = func(*args, **kwargs)
            self._known[id(view)] = (view, recipe, (*views, call))
            return view
        self._calls += 1
        recipe.writes.append((seed_of(self._seed, self._calls), views, call))
        return tensor


def _applied(func: Any, rest: Any, kwargs: Any, tensor: torch.Tensor) -> Any:
    return func(tensor, *rest, **kwargs)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
