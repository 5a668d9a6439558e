"""Count the work of an operation: multiplications and additions by torch's formulas, and whether it touches memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from herringbone_parallel.core.structure import leaves_of

# Operations that allocate memory and do not touch it.
_FREE = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.empty_strided.default}
# Recurrent layers in one operation, for which torch has no formula: the number of products with each matrix.
_RECURRENT = {"mkldnn_rnn_layer": 1, "mkldnn_rnn_layer_backward": 2, "_cudnn_rnn": 1, "_cudnn_rnn_backward": 2}


@functools.cache
def is_view(func: Any) -> bool:
    """Say whether the operation returns a view of an argument and writes nothing."""
    returns = func._schema.returns
    return bool(returns) and not func._schema.is_mutable and any(one.alias_info is not None for one in returns)


def is_free(func: Any) -> bool:
    """Say whether the operation neither reads nor writes values."""
    return func in _FREE or is_view(func)


def work(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the multiplications and additions of a call, each counted as one; 0 for an operation without a formula."""
    count = flop_registry.get(func.overloadpacket)
    if count is not None:
        return int(count(*args, **kwargs, out_val=result))
    times = _RECURRENT.get(func.overloadpacket.__name__)
    if times is None:
        return 0
    inputs = args[0]
    matrices = [leaf for leaf in leaves_of(args[1:3]) if isinstance(leaf, torch.Tensor) and leaf.dim() == 2]
    rows: int = inputs.numel() // inputs.shape[-1]
    return 2 * times * rows * sum(matrix.numel() for matrix in matrices)
