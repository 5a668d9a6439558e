"""Numbers of sharded parameters, which optimizers and scripts read: the value of the whole, on every rank.

torch computes a norm, a sum or a maximum of a `DTensor` on each rank's elements, and notes that the parts have to be
joined. It joins them when the result is combined with another tensor, but not when Python reads it: there
`parameter.norm().item()` is the norm of this rank's elements (torch 2.6 to 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.utils.clip_grad as torch_clipping

_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__")
# In torch's Adafactor, `torch.norm(gradient, dim=-1, keepdim=True).square_()`.
_WRITES = ("square_", "pow_", "sqrt_", "rsqrt_", "reciprocal_", "log_", "add_", "sub_", "clamp_", "clamp_min_")


def join_parts() -> None:
    """Join such numbers before Python reads or changes them; a second call changes nothing."""
    from torch.distributed.tensor import DTensor

    if "item" in vars(DTensor):
        return
    for name in (*_READS, *_WRITES):
        setattr(DTensor, name, _joining(getattr(torch.Tensor, name)))
    # Scripts import torch's functions by their names, so this replaces the code behind torch's decorator.
    for cell in getattr(torch_clipping._get_total_norm, "__closure__", None) or ():
        if callable(cell.cell_contents):
            cell.cell_contents = _joined_result(cell.cell_contents)


def _joining(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def joining(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return method(_join(tensor), *args, **kwargs)

    return joining


def _joined_result(function: Callable[..., Any]) -> Callable[..., Any]:
    # All ranks call it. Scripts read the norm on the first one alone, where nothing could be joined any more.
    @wraps(function)
    def joined(*args: Any, **kwargs: Any) -> Any:
        return _join(function(*args, **kwargs))

    return joined


def _join(tensor: Any) -> Any:
    """Join a `DTensor` that is a part on each rank, in place; every rank must call it."""
    placements = getattr(tensor, "placements", ())
    if any(placement.is_partial() for placement in placements):
        from torch.distributed.tensor import Replicate

        joined = [Replicate() if placement.is_partial() else placement for placement in placements]
        whole = tensor.redistribute(placements=joined)
        tensor._local_tensor, tensor._spec = whole._local_tensor, whole._spec
    return tensor
