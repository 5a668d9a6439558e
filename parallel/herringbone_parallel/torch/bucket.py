"""Buckets: gradients in one flat buffer, which is summed over the replicas at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError


class Bucket:
    """The gradients of some parameters of one dtype and device, one after another in `buffer`.

        bucket = Bucket(0, parameters, as_views=False)
        bucket.fill()
        dist.all_reduce(bucket.buffer)
        bucket.write_back(bucket.buffer, {id(parameter) for parameter in parameters})

    `views` are the parts of the buffer. With `as_views` the gradients are these parts; otherwise they are copied there
    and back.
    """

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], *, as_views: bool) -> None:
        self.index = index
        self.parameters = list(parameters)
        first = self.parameters[0]
        count = sum(parameter.numel() for parameter in self.parameters)
        self.buffer = torch.zeros(count, dtype=first.dtype, device=first.device)
        self.views = self.parts_of(self.buffer)
        self._as_views = as_views
        self._view_of = {id(parameter): view for parameter, view in zip(self.parameters, self.views, strict=True)}
        if as_views:
            self.fill()

    def parts_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of each parameter in a tensor laid out as the buffer is, in the parameter's shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def fill(self) -> None:
        """Copy the gradients into the buffer; a parameter without a gradient counts as zero."""
        targets, sources = [], []
        for parameter, view in zip(self.parameters, self.views, strict=True):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif self._as_views:
                self.adopt(parameter)
            else:
                targets.append(view)
                sources.append(gradient)
        if targets:
            # One kernel for all copies, or a few.
            torch._foreach_copy_(targets, sources)

    def adopt(self, parameter: torch.Tensor) -> None:
        """With `as_views`, make the parameter's gradient a part of the buffer."""
        view = self._view_of[id(parameter)]
        if self._as_views and parameter.grad is not None and not _same(parameter.grad, view):
            parameter.grad = view.copy_(parameter.grad)

    def write_back(self, result: Any, wanted: Collection[int], *, scale: float = 1.0) -> None:
        """Give the parameters whose `id` is in `wanted` their scaled parts of the result, a tensor or a list of one."""
        flat = result[0] if isinstance(result, (list, tuple)) else result
        if not isinstance(flat, torch.Tensor) or flat.numel() != self.buffer.numel():
            raise ParallelError(
                f"the communication hook's future holds {_described(flat)} for a bucket of {self.buffer.numel()}"
                " elements; it has to hold the averaged gradients, flat, as bucket.buffer() is"
            )
        flat = flat.view(-1) if scale == 1.0 else flat.view(-1) * scale
        # A hook may return another tensor than the buffer.
        parts = self.views if _same(flat, self.buffer) else self.parts_of(flat)
        targets, sources = [], []
        for parameter, view, part in zip(self.parameters, self.views, parts, strict=True):
            if id(parameter) not in wanted:
                continue
            gradient = parameter.grad
            if self._as_views or gradient is None:
                gradient = view if self._as_views else torch.empty_like(parameter)
                parameter.grad = gradient
            targets.append(gradient)
            sources.append(part)
        if targets and not _same(targets[0], sources[0]):
            torch._foreach_copy_(targets, sources)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether both tensors are the same view of the same memory."""
    return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype and one.stride() == other.stride()


def _described(result: Any) -> str:
    return f"a tensor of {result.numel()}" if isinstance(result, torch.Tensor) else f"a {type(result).__qualname__}"


class GradBucket:
    """The bucket that a communication hook receives, with the methods of `torch.distributed.GradBucket`.

    It is a class of its own, because Python code cannot construct torch's.
    """

    def __init__(self, bucket: Bucket, is_last: bool) -> None:
        self._bucket = bucket
        self._buffer = bucket.buffer
        self._is_last = is_last

    def index(self) -> int:
        """Return the bucket's index in the order of reduction, from 0."""
        return self._bucket.index

    def buffer(self) -> torch.Tensor:
        """Return the flat tensor of this replica's gradients."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradient of each parameter, as views of the buffer."""
        return self._bucket.parts_of(self._buffer)

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters, in the order of their gradients."""
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Say whether this is the last bucket of the step."""
        return self._is_last

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by another flat tensor with as many elements."""
        self._buffer = buffer
