"""Attention of a rank's rows to the whole sequence: the one operation of a layer that reads other positions.

`SharedAttention` is active while a layer runs. It catches the call of `scaled_dot_product_attention`, whichever name
the model has for it, and collects keys and values from the other ranks:

    queries [held rows]   keys, values [held rows] --gather--> [all rows]   mask [all rows, all rows] --> [held, all]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as torch's own documentation
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.context_parallel.exchange import Sequence
from herringbone_parallel.torch.context_parallel.multihead import multihead


class SharedAttention(TorchFunctionMode):
    """Makes attention inside of a `with` block reach the rows of all ranks of the context group.

    `sequences` has the sequences of the running layer by the number of rows that this rank holds. `calls` counts the
    calls of attention: none means that a layer computed it in another way, from this rank's rows alone.
    """

    def __init__(self, sequences: Mapping[int, Sequence]) -> None:
        super().__init__()
        self.calls = 0
        self._sequences = sequences

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            return multihead(self._attend, args, kwargs)
        return function(*args, **kwargs)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        self.calls += 1
        rows, columns = self._sequence(query, "queries"), self._sequence(key, "keys")
        key, value = _gather(columns, key, value)
        options["dropout_p"] = dropout_p
        if is_causal:
            # A causal kernel takes a square or the bottom of one, so each of the rank's two parts is a call.
            attended, start = [], 0
            for part in rows.parts:
                attended.append(
                    F.scaled_dot_product_attention(
                        query.narrow(-2, start, part.length),
                        key.narrow(-2, 0, part.stop),
                        value.narrow(-2, 0, part.stop),
                        attn_mask=causal_lower_right(part.length, part.stop),
                        **options,
                    )
                )
                start += part.length
            return torch.cat(attended, dim=-2)
        if attn_mask is not None and attn_mask.size(-2) != 1:
            _check_mask(attn_mask, rows, columns)
            attn_mask = rows.rows_of(attn_mask, dim=-2)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)

    def _sequence(self, tensor: torch.Tensor, what: str) -> Sequence:
        sequence = self._sequences.get(tensor.shape[-2])
        if sequence is None:
            lengths = ", ".join(str(held) for held in sorted(self._sequences))
            raise ParallelError(
                f"attention got {what} of {tensor.shape[-2]} positions, and this rank holds {lengths} of the sequence:"
                " a layer under context parallelism adds, drops and caches no positions"
            )
        return sequence


def _gather(columns: Sequence, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if key.shape[:-1] != value.shape[:-1]:
        return columns.gather(key, dim=-2), columns.gather(value, dim=-2)
    # One exchange for both.
    both = columns.gather(torch.cat([key, value], dim=-1), dim=-2)
    return both[..., : key.shape[-1]], both[..., key.shape[-1] :]


def _check_mask(mask: torch.Tensor, rows: Sequence, columns: Sequence) -> None:
    expected = (rows.layout.length, columns.layout.length)
    if tuple(mask.shape[-2:]) != expected:
        raise ParallelError(
            f"attention got a mask of {tuple(mask.shape)}, and the sequences have {expected} positions: a layer under"
            " context parallelism takes the mask of the whole sequence, and makes none of its own input"
        )
