"""Calls of TensorFlow's functions with flat lists of tensors, without what a call does for nested arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# A function of tensors: takes and returns flat lists.
Flat = Callable[[Sequence[Any]], Sequence[Any]]


def flat(concrete: Any) -> Flat:
    """Return a concrete function as one of flat lists.

    Called as it is, it binds its arguments, checks and casts each, and records for gradient tapes; here they are what
    it was made for, and no tape sees them. That is half of the time of a short call.
    """
    captured, inference = concrete.captured_inputs, concrete.inference_fn

    def call(tensors: Sequence[Any]) -> Sequence[Any]:
        return inference.call_flat(*tensors, *captured) or ()

    return call
