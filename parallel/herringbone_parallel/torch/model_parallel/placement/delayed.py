"""Delayed parameters: their values are made later, on the rank that keeps them. Until then they are on `meta`.

While a model is created inside `smp.delay_param_initialization`, every call of torch passes a function mode:

    [1] weight = torch.empty(4096, 4096)            a factory: noted by the storage that it has allocated
    [2] self.weight = nn.Parameter(weight)          a registration: moved to `meta`, with a `Recipe` as attribute
    [3] nn.init.normal_(self.weight, std=0.02)      a write: added to the recipe with its own seed
        self.weight.data[0].zero_()                 a write into a view: added with the way to that view
    [4] `make_values`                               after the partition: runs the recipes of this rank

A parameter that is computed from other tensors has no recipe. It is left alone and has its values at once, on each
rank. The patches of torch below affect the whole process, so a model must be created in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import isfunction
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.placed import METADATA
from herringbone_parallel.torch.model_parallel.runtime.randomness import draw_seed, seed_of, seeded

# Attributes of a delayed parameter: the recipe of its values, and the parameter that has replaced it.
_RECIPE = "_smp_recipe"
_REPLACEMENT = "_smp_made"
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
# Typed `Any`, because torch's stubs do not declare that these attributes have `__get__` and `__set__`.
_attribute: Any = torch.Tensor
_VIEWS = {
    _attribute.data.__get__, torch.Tensor.detach, torch.Tensor.__getitem__, torch.Tensor.t, _attribute.T.__get__,
    torch.Tensor.view, torch.Tensor.transpose, torch.Tensor.narrow, torch.Tensor.select, torch.Tensor.unsqueeze,
}  # fmt: skip
_HARMLESS = {
    *METADATA,
    torch.Tensor.requires_grad_,
    _attribute.requires_grad.__set__,
    _attribute.grad.__get__,
    _attribute.grad.__set__,
    torch.Tensor.stride,
    torch.Tensor.is_contiguous,
    torch.Tensor.storage_offset,
    torch.Tensor.untyped_storage,
}
# A delayed parameter answers as the parameter that it will be: code that asks creates other tensors accordingly.
_FUTURE_ATTRIBUTES: dict[Any, Any] = {_attribute.device.__get__: torch.device("cpu"), _attribute.is_meta.__get__: False}

Call = Callable[[torch.Tensor], Any]


class Write(NamedTuple):
    """A write into a parameter: through `views`, one after another, or into the whole if there are none."""

    seed: int
    views: tuple[Call, ...]
    write: Call


@dataclass
class Recipe:
    """The steps that make a parameter's values: the factory, then each write, each with its own seed."""

    make: Callable[[], torch.Tensor]
    seed: int
    writes: list[Write] = field(default_factory=list)

    def run(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the values, on the CPU."""
        with torch.no_grad():
            with seeded(self.seed):
                whole = self.make()
            for step in self.writes:
                target = whole
                for view in step.views:
                    target = view(target)
                # A seed for each write: the values are the same on whichever rank, and next to whichever others, the
                # recipe runs.
                with seeded(step.seed):
                    step.write(target)
        return whole.to(dtype)


class _Fresh(NamedTuple):
    """A tensor that a factory made; the weak reference keeps the storage's address from being used again."""

    storage: StorageWeakRef
    recipe: Recipe


class _Delayed(NamedTuple):
    """A delayed parameter, or a view of one taken by `views`. The reference to `tensor` keeps its `id` unique."""

    tensor: torch.Tensor
    recipe: Recipe
    views: tuple[Call, ...]


@contextmanager
def delaying() -> Iterator[None]:
    """Delay the values of the parameters created in the `with` block."""
    recorder = _Recorder(draw_seed())
    register = nn.Module.register_parameter

    def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param if param is None else recorder.delay(param))

    # Some functions of torch.nn.init do nothing on `meta`, so the function mode would not see their writes. A script
    # that imported a public function by name still calls the private one of the module, which is patched here as well.
    fillers = {name: filler for name, filler in vars(nn.init).items() if name.endswith("_") and isfunction(filler)}
    # The mode sees no registration, because it is no operation of torch.
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
    """Make the values of the delayed parameters that are assigned to `rank`, or of all without an assignment."""
    # By identity of the delayed parameter, so that tied parameters stay tied.
    replacements: dict[int, nn.Parameter] = {}
    for path, inner in module.named_modules():
        if assigned is not None and assigned.get(path) != rank:
            continue
        for name, parameter in list(inner._parameters.items()):
            recipe: Recipe | None = getattr(parameter, _RECIPE, None)
            if parameter is None or recipe is None:
                continue
            if id(parameter) not in replacements:
                replacements[id(parameter)] = nn.Parameter(recipe.run(parameter.dtype), parameter.requires_grad)
                # For optimizers that were made over the delayed parameter.
                setattr(parameter, _REPLACEMENT, replacements[id(parameter)])
            # By `setattr` and not into `_parameters`: recurrent layers keep a list of their weights besides.
            setattr(inner, name, replacements[id(parameter)])


def with_values(parameter: torch.Tensor) -> torch.Tensor:
    """Return the replacement of a delayed parameter; a parameter without replacement is returned as it is."""
    replacement: torch.Tensor = getattr(parameter, _REPLACEMENT, parameter)
    return replacement


class _Recorder(TorchFunctionMode):
    """The function mode that records the creation of a model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._calls = 0
        # By storage: tensors that a factory made and that nothing has used yet.
        self._fresh: dict[int, _Fresh] = {}
        # By identity of the tensor: delayed parameters and their views.
        self._delayed: dict[int, _Delayed] = {}

    def delay(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter on `meta`, or the parameter itself when there is no recipe for its values: [2]."""
        fresh = self._fresh.pop(_storage(parameter), None)
        if fresh is None:
            return parameter
        recipe = fresh.recipe
        # Without the function mode, which would take these calls for the script's.
        with torch._C.DisableTorchFunction():
            delayed = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        setattr(delayed, _RECIPE, recipe)
        self._delayed[id(delayed)] = _Delayed(delayed, recipe, ())
        return delayed

    def noting(self, filler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of `torch.nn.init` so that a delayed parameter records it as one write."""

        @wraps(filler)
        def fill(*args: Any, **kwargs: Any) -> Any:
            tensor, rest = (args[0], args[1:]) if args else (kwargs.pop("tensor"), ())
            if id(tensor) in self._delayed:
                return self._on_delayed(filler, (tensor, *rest), kwargs, only=True)
            return filler(tensor, *rest, **kwargs)

        return fill

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not args and "tensor" in kwargs:
            # torch.nn.init passes its own function to the mode, with all arguments named. The recipe needs the
            # original, because a wrapped one would be recorded again when the recipe runs.
            func, args = getattr(func, "__wrapped__", func), (kwargs.pop("tensor"),)
        tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func in _FACTORIES and not tensors:
            return self._on_factory(func, args, kwargs)
        delayed = [tensor for tensor in tensors if id(tensor) in self._delayed]
        if delayed and func in _FUTURE_ATTRIBUTES:
            return _FUTURE_ATTRIBUTES[func]
        if func in _HARMLESS or not tensors:
            return func(*args, **kwargs)
        if not delayed:
            # The operation may read or write a fresh tensor, whose recipe then no longer describes it.
            for tensor in tensors:
                self._fresh.pop(_storage(tensor), None)
            return func(*args, **kwargs)
        return self._on_delayed(func, args, kwargs, only=len(delayed) == 1 and len(args) > 0 and args[0] is delayed[0])

    def _on_factory(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Run a factory and note its tensor with a recipe: [1]."""
        self._calls += 1
        recipe = Recipe(partial(func, *args, **kwargs), seed_of(self._seed, self._calls))
        with seeded(recipe.seed):
            tensor: torch.Tensor = func(*args, **kwargs)
        # With the dtype of now: the default dtype may be another one when the recipe runs.
        recipe.make = partial(func, *args, **{**kwargs, "dtype": tensor.dtype, "requires_grad": False})
        if tensor.device.type == "cpu":
            self._fresh[_storage(tensor)] = _Fresh(
                StorageWeakRef(tensor.untyped_storage()),  # type: ignore[no-untyped-call]
                recipe,
            )
        return tensor

    def _on_delayed(self, func: Any, args: Any, kwargs: Any, *, only: bool) -> Any:
        """Record a write into a delayed parameter, or a view of it: [3]. Raise `ParallelError` for anything else.

        `only` is True if the delayed parameter is the first argument and no other argument is one.
        """
        name = getattr(func, "__name__", str(func))
        written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if not only or not (written or func in _VIEWS):
            raise ParallelError(
                f"{name} needs the values of a parameter inside smp.delay_param_initialization, where it has none yet."
                " Fill it with torch.nn.init or with in-place operations that read nothing but constants, or make"
                " this part of the model outside"
            )
        tensor, recipe, views = self._delayed[id(args[0])]
        call: Call = partial(_applied, func, args[1:], kwargs)
        if not written:
            view = func(*args, **kwargs)
            self._delayed[id(view)] = _Delayed(view, recipe, (*views, call))
            return view
        self._calls += 1
        recipe.writes.append(Write(seed_of(self._seed, self._calls), views, call))
        return tensor


def _applied(func: Any, rest: Any, kwargs: Any, tensor: torch.Tensor) -> Any:
    return func(tensor, *rest, **kwargs)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
