"""Serve or refuse the functions of torch that never ask `__torch_function__`.

    custom autograd functions, scripted functions    served: they run where their inputs are
    torch.vmap, torch.func and functional_call       refused in code of every rank, served in a module of one

torch hands the arguments of these functions on as they are. Left alone, a custom function would run its `forward` on
placed tensors without gradients, and its results would have no flow: the weights would be wrong without an error.

Scripts bind `MyFunction.apply`, `torch.vmap` and scripted functions when they are imported. So this replaces names that
such a function looks up at each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap
from torch.autograd import function as functions
from torch.nn.utils import stateless

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.torch import function_apply
from herringbone_parallel.torch.library_hooks import COMPILER
from herringbone_parallel.torch.model_parallel.runtime.microbatch import HOME_ATTRIBUTE, current
from herringbone_parallel.torch.model_parallel.runtime.operations import operate_inside, reading
from herringbone_parallel.torch.model_parallel.runtime.placed import IN_A_MODULE, TRANSFORMED, PlacedTensor

_PACKAGE = __name__.partition(".")[0]
_call_scripted = torch.jit.ScriptFunction.__call__
# Typed `Any`: the names are private.
_transforms: Any = eager_transforms
_vmap: Any = vmap
_wrap_for_grad = _transforms._wrap_for_grad
_add_batch_dim = _vmap._add_batch_dim
_reparametrize_module = stateless._reparametrize_module
_make_grads = torch.autograd._make_grads
# Here and not in `serve_bypasses`, so that it comes before the script's own classes where no import hook has done it.
function_apply.watch(functions)


def serve_bypasses() -> None:
    """Replace the functions in this process; a second call changes nothing."""
    function_apply.serve(_apply)
    torch.jit.ScriptFunction.__call__ = _scripted  # type: ignore[method-assign]
    _transforms._wrap_for_grad = partial(_without_placed, _wrap_for_grad)
    _vmap._add_batch_dim = partial(_without_placed, _add_batch_dim)
    stateless._reparametrize_module = _without_homes
    torch.autograd._make_grads = _starts
    # torch.compile must not compile this library's own functions where a compiled function of the script calls them.
    # Not imported for that alone: the first optimizer of a process imports it.
    if rules := sys.modules.get("torch._dynamo.trace_rules"):
        require(COMPILER)
        _skip_package(rules.add)


@cache
def _skip_package(add: Callable[[str], None]) -> None:
    # Once in a process: each call of `add` lengthens torch's list, and compiles the expression of the whole list again.
    add(_PACKAGE)


@contextmanager
def naming_compilers() -> Iterator[None]:
    """Raise `ParallelError` in place of an error of torch.compile that a placed tensor has caused in the `with` block.

    It compiles code with placed tensors call by call, between them. `fullgraph=True` and torch.cond do not allow that.
    """
    try:
        yield
    except Exception as error:
        # The compiler names the class that it cannot trace, or this library's function at which it gave up.
        ours = PlacedTensor.__name__ in str(error) or _PACKAGE in str(error)
        if type(error).__module__.startswith("torch._dynamo") and ours:
            raise ParallelError(
                "torch.compile(fullgraph=True), torch.cond, or another function that is compiled as a whole, with a"
                f" tensor of a distributed model. {IN_A_MODULE}"
            ) from error
        raise


def _apply(cls: Any, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _serve(f"{cls.__name__}.apply", cls, own, args, kwargs)


def _scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _serve(self.name, self, partial(_call_scripted, self), args, kwargs)


def _without_placed(function: Callable[..., Any], tensor: torch.Tensor, *args: Any) -> Any:
    if isinstance(tensor, PlacedTensor):
        raise ParallelError(TRANSFORMED)
    return function(tensor, *args)


def _starts(outputs: Any, *args: Any, **kwargs: Any) -> Any:
    # Called by `torch.autograd.backward`, which would add a gradient to the placed tensor itself, and to nothing else.
    if any(isinstance(output, PlacedTensor) for output in outputs):
        raise ParallelError(
            "torch.autograd.backward of a tensor of a distributed model: call model.backward(loss) instead"
        )
    return _make_grads(outputs, *args, **kwargs)


def _without_homes(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    # While one microbatch waits with its parameters in a module, another one would use them and put them back.
    if current() is not None and any(HOME_ATTRIBUTE in inner.__dict__ for inner in module.modules()):
        raise ParallelError(
            f"torch.func.functional_call of a {type(module).__name__} of a distributed model. {IN_A_MODULE}"
        )
    return _reparametrize_module(module, *args, **kwargs)


def _serve(
    name: str, identity: Hashable, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    microbatch = current()
    if microbatch is not None:
        if any(isinstance(microbatch.place_parameter(leaf), PlacedTensor) for leaf in (*args, *kwargs.values())):
            return microbatch.call(name, None, partial(reading, name, function), args, kwargs, identity)
    elif any(isinstance(leaf, PlacedTensor) for leaf in args):
        return operate_inside(function, args, kwargs)
    return function(*args, **kwargs)
