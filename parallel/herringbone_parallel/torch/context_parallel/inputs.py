"""Takes a rank's rows of what a model gives each of its layers: positions, angles, an encoder's output.

The hidden states are not among them: the stack's first layer splits those. Masks stay whole, and attention takes rows.
"""

from __future__ import annotations

from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.context_parallel.exchange import Sequence

# The other sequence of a decoder's layer, by the names that torch and transformers have for it.
MEMORY = frozenset({"memory", "encoder_hidden_states"})
_INTEGERS = (torch.int64, torch.int32)


def rows_of_input(name: str, value: Any, sequence: Sequence) -> Any:
    """Return this rank's rows of one argument of a layer; what has no position axis is returned as it is.

    The position axis is the last but one of numbers (rotary angles [batch, positions, features]), and the last one of
    integers (position ids [batch, positions]). Raises `ParallelError` where a tensor's shape leaves that open.
    """
    if isinstance(value, tuple):
        return tuple(rows_of_input(name, item, sequence) for item in value)
    length = sequence.layout.length
    if not isinstance(value, torch.Tensor) or "mask" in name or length not in value.shape:
        return value
    if value.dtype in _INTEGERS and value.shape[-1] == length and length not in value.shape[:-1]:
        return sequence.rows_of(value, dim=-1)
    by_name = name.startswith("position")
    if (
        value.dim() > 1
        and value.shape[-2] == length
        and (by_name or length not in (*value.shape[:-2], value.shape[-1]))
    ):
        return sequence.rows_of(value, dim=-2)
    raise ParallelError(
        f"a layer's argument {name} of shape {tuple(value.shape)} may be of the {length} positions along more than one"
        " axis: call it 'mask' if it is one, or position_embeddings with the positions along the last axis but one"
    )
