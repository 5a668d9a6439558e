"""Cut tensor arguments of a step function into microbatches, and refuse those on a wrong device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.microbatch import microbatch_size


def pieces(name: str, leaf: Any, microbatches: int, axis: int) -> Sequence[torch.Tensor] | None:
    """Return a tensor's part for each microbatch; None for a leaf that is no tensor, or a tensor without an axis."""
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return None
    size = microbatch_size(leaf.shape[axis], microbatches, what=f"argument {name!r}", axis=axis)
    # Views of the caller's tensor: nothing is copied.
    return torch.split(leaf, size, axis)


def check_device(device: torch.device, name: str, leaf: Any) -> None:
    """Raise `ParallelError` for a tensor that is neither on this rank's `device` nor on the CPU."""
    if not isinstance(leaf, torch.Tensor) or leaf.device in (device, torch.device("cpu")):
        return
    if leaf.device.type == "meta":
        raise ParallelError(
            f"argument {name!r} of the step is on the device 'meta', which has shapes and no data;"
            " pass a tensor with data"
        )
    raise ParallelError(
        f"argument {name!r} of the step is on {leaf.device}, and this rank computes on {device}: move it with"
        f" .to({str(device)!r}), or let the script take its device from smp.local_rank()"
    )
