"""Horovod's operations on tensors; tensors on a device are copied to the host's memory.

All ranks call them in the same order, by which operations are matched. Names have no effect.
"""

from __future__ import annotations

from functools import reduce

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.collectives import broadcast as _broadcast
from herringbone_parallel.reduce.engine import Handle
from herringbone_parallel.reduce.horovod import Compression, Op, chosen_op, engine

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Pending:
    """An all-reduce in progress, for `synchronize` and `poll`."""

    def __init__(
        self, handle: Handle | None, work: torch.Tensor, target: torch.Tensor, divisor: int, scale: float
    ) -> None:
        self.handle = handle
        self._work, self._target, self._divisor, self._scale = work, target, divisor, scale

    def finish(self) -> torch.Tensor:
        """Wait for the sum, put it into the target and return that."""
        if self.handle is not None:
            self.handle.wait()
        if self._divisor > 1:
            # An average of integers: the engine averages floating point only.
            self._work.div_(self._divisor, rounding_mode="floor")
        if self._scale != 1.0:
            self._work.mul_(self._scale)
        if self._work is not self._target:
            self._target.copy_(self._work.view(self._target.shape))
        return self._target


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: str | None = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return the tensor's average over all ranks, or the result of `op`; `average=False` is a sum, as in old scripts.

    loss = hvd.allreduce(loss.detach())
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ParallelError("hvd.allreduce of a tensor that requires a gradient: give tensor.detach()")
    pending = allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, compression=compression)
    return synchronize(pending)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Do `allreduce` in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: str | None = Compression.none,
) -> Pending:
    """Start `allreduce`; `synchronize` returns its result."""
    return allreduce_async_(
        tensor.detach().clone(), average, name, op, prescale_factor, postscale_factor, compression=compression
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001  the order of calls identifies tensors
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: str | None = Compression.none,
) -> Pending:
    """Start `allreduce_` in place; `synchronize` returns its result."""
    chosen = chosen_op(average, op)
    target = tensor.detach()
    work = _on_host(target)
    if prescale_factor != 1.0:
        work.mul_(prescale_factor)
    if chosen in (Op.MIN, Op.MAX):
        # The engine only sums: each rank gathers all tensors and combines them.
        combine = torch.minimum if chosen is Op.MIN else torch.maximum
        return Pending(None, reduce(combine, _gathered(work)), target, 1, postscale_factor)
    wire = compression if work.dtype is torch.float32 else None
    # The engine divides in fp32, before it rounds to 16 bits.
    divided = chosen is Op.AVERAGE and work.dtype in _FLOATS
    handle = engine().all_reduce(
        work.data_ptr(),
        work.numel(),
        str(work.dtype).removeprefix("torch."),
        op="average" if divided else "sum",
        wire=wire,
    )
    divisor = engine().size if chosen is Op.AVERAGE and not divided else 1
    return Pending(handle, work, target, divisor, postscale_factor)


def synchronize(handle: Pending) -> torch.Tensor:
    """Wait for an operation and return its result."""
    return handle.finish()


def poll(handle: Pending) -> bool:
    """Return True if `synchronize` would return at once."""
    return handle.handle is None or handle.handle.done()


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:  # noqa: ARG001
    """Return the tensors of all ranks, concatenated; they may differ in their first dimension only."""
    host = tensor.detach().cpu().contiguous()
    return torch.cat([part.view(-1, *host.shape[1:]) for part in _gathered(host)]).to(tensor.device)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return the tensor of rank `root_rank`."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:  # noqa: ARG001
    """Give every rank the tensor of rank `root_rank`, in place."""
    host = tensor.detach().cpu().contiguous()
    _broadcast(engine(), host.reshape(-1).view(torch.uint8).numpy(), root_rank)
    with torch.no_grad():
        tensor.copy_(host)
    return tensor


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in the host's memory and in a type that the engine sums: the tensor itself, or a copy."""
    if tensor.layout is not torch.strided:
        raise ParallelError("hvd.allreduce of a sparse tensor: give tensor.to_dense()")
    # Bool and small integers are summed as int64, and converted back when the sum is copied.
    summed = tensor.dtype if tensor.dtype in (*_FLOATS, torch.int32, torch.int64, torch.uint8) else torch.int64
    return tensor.to("cpu", summed).contiguous()


def _gathered(host: torch.Tensor) -> list[torch.Tensor]:
    """Return each rank's elements, flat."""
    parts = all_gather(engine(), host.reshape(-1).view(torch.uint8).numpy().tobytes())
    # `frombuffer` rejects an empty buffer.
    return [torch.frombuffer(bytearray(part), dtype=host.dtype) if part else host.new_empty(0) for part in parts]
