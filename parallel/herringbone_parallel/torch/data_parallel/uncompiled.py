"""Keep torch.compile out of functions that torch's C++ code calls while a compiled model runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any

import torch

# Typed `Any`: the names are private.
_frames: Any = torch._C._dynamo.eval_frame


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which the compiler neither compiles nor follows.

    A compiled DistributedDataParallel rebuilds its buckets in its second forward, where C++ asks the group to broadcast
    their order. The compiler would take that method for a function of the script. `torch.compiler.disable` does the
    same as this, and imports the compiler, which takes seconds.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = _frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _frames.set_eval_frame(before)

    wrapped: Any = run
    _skip(wrapped.__code__)
    return run


def _skip(code: CodeType) -> None:
    if hasattr(_frames, "skip_code"):  # torch 2.6
        _frames.skip_code(code)
    else:
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip))
