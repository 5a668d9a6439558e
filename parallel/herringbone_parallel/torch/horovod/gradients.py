"""Sums gradients bucket by bucket while the backward runs, for an optimizer that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.buckets import cut_buckets
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_parallel.torch.bucket import Bucket
from herringbone_parallel.torch.data_parallel.bucket_sizes import plan


class Gradients:
    """Sums or averages (`op`) the gradients of some parameters over the ranks.

    A bucket starts when all of its gradients have had `passes` backwards and all buckets before it have started, so
    that the order is the same on all ranks. `synchronize` starts the rest, and puts the sums in place. A parameter
    without a gradient counts as zero, and has a gradient afterwards.
    """

    def __init__(
        self,
        engine: Engine,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        wire: str | None,
        passes: int,
        op: str,
        densify: bool,
    ) -> None:
        self._engine, self._wire, self._passes, self._op, self._densify = engine, wire, passes, op, densify
        # Gradients become final roughly in the reverse order of definition.
        parameters = [parameter for _, parameter in named][::-1]
        self._buckets = [
            Bucket(index, [parameters[i] for i in indices], as_views=False)
            for index, indices in enumerate(_cut(parameters, engine))
        ]
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._pass_counts: dict[int, int] = {}
        self._handles: list[Handle] = []
        self._staged: list[torch.Tensor] = []
        for name, parameter in named:
            # This hook runs after autograd has added the gradient to `.grad`; an earlier one would see the old value.
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    @property
    def in_progress(self) -> bool:
        """True if buckets have started for which nobody has waited."""
        return bool(self._handles)

    def synchronize(self) -> None:
        """Start the remaining buckets, wait for all, and put the sums into `.grad`."""
        with torch.no_grad():
            while len(self._handles) < len(self._buckets):
                self._start()
            # Reset before waiting, so that an error leaves no stale handles behind.
            handles, self._handles = self._handles, []
            staged, self._staged = self._staged, []
            self._pass_counts.clear()
            for bucket, handle, flat in zip(self._buckets, handles, staged, strict=True):
                handle.wait()
                bucket.write_back(flat.to(bucket.buffer.device), {id(parameter) for parameter in bucket.parameters})

    def _note(self, name: str, parameter: torch.Tensor) -> None:
        """Count a backward of one parameter; runs inside that backward, in the autograd thread."""
        count = self._pass_counts[id(parameter)] = self._pass_counts.get(id(parameter), 0) + 1
        if count > self._passes:
            raise ParallelError(
                f"the gradient of {name} was computed {count} times since the last step, and backward_passes_per_step"
                f" is {self._passes}: call optimizer.step() after that many backwards, or increase it"
            )
        if parameter.grad is not None and parameter.grad.is_sparse:
            if not self._densify:
                raise ParallelError(
                    f"the gradient of {name} is sparse: give hvd.DistributedOptimizer sparse_as_dense=True"
                )
            parameter.grad = parameter.grad.to_dense()
        # Start every bucket that is final, in order: the next one may have been final for a while.
        with torch.no_grad():
            while len(self._handles) < len(self._buckets) and self._is_final(self._buckets[len(self._handles)]):
                self._start()

    def _is_final(self, bucket: Bucket) -> bool:
        return all(self._pass_counts.get(id(parameter), 0) == self._passes for parameter in bucket.parameters)

    def _start(self) -> None:
        bucket = self._buckets[len(self._handles)]
        bucket.fill()
        flat = bucket.buffer.cpu()
        # Only fp32 can travel in 16 bits; other types travel unchanged.
        wire = self._wire if flat.dtype is torch.float32 else None
        name = str(flat.dtype).removeprefix("torch.")
        self._handles.append(self._engine.all_reduce(flat.data_ptr(), flat.numel(), name, op=self._op, wire=wire))
        # The engine has only an address: this reference keeps the memory alive until the sum is there.
        self._staged.append(flat)


def _cut(parameters: Sequence[torch.Tensor], engine: Engine) -> list[list[int]]:
    if engine.size > 1:
        return plan(parameters, session.cost())
    # A lone rank sends nothing, so nothing needs to be measured.
    sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
    return cut_buckets(sizes, first_bytes=25 << 20, most_bytes=25 << 20)
