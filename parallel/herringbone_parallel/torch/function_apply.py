"""Watch the calls of custom autograd functions, each of which is a call of `torch.autograd.Function.apply`.

    [1] watch(torch.autograd.function)      as soon as torch defines the class
    [2] fast = MyFunction.apply             a script binds the method when it is imported
    [3] serve(server)                       calls of both forms, bound and not, reach the server from now on

Since torch 2.14 the method is a built-in one: a bound one looks up nothing that could be replaced later. So a rank
calls `watch` while torch is imported, before any script can bind the method. So this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

# (class, its own `apply`, arguments, keyword arguments) -> the results of `apply`
Server = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_server: Server | None = None
_watched: set[Any] = set()


def watch(module: ModuleType) -> None:
    """Replace the method in `torch.autograd.function`; a second call changes nothing."""
    function = module.Function
    if function in _watched:
        return
    _watched.add(function)
    plain = vars(function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        own = plain.__get__(None, cls)
        return own(*args, **kwargs) if _server is None else _server(cls, own, args, kwargs)

    function.apply = classmethod(apply)


def serve(server: Server) -> None:
    """Let `server` answer all calls of custom functions in this process."""
    global _server
    _server = server
