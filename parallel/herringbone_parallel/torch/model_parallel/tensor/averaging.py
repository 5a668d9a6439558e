"""Averages gradients over a tensor group, for parameters of which every rank of the group has all.

The replicas of a rank average the gradients of its parameters, in buckets and during the backward. The ranks of a
tensor group have different batches, or the same ones; whole parameters need their mean as well. It is taken after the
replicas' mean: the order of the two changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from herringbone_parallel.torch.tensor_parallel.operations import Peers


class InnerReducer(Protocol):
    """The part of the replicas' reducer that a step uses."""

    def expect(self) -> None: ...
    def step(self) -> AbstractContextManager[None]: ...
    def retire(self) -> None: ...


class TensorReducer:
    """Averages over the replicas by `inner`, and then over the tensor group what `whole` returns.

    reducer = TensorReducer(peers, whole_parameters, inner)
    with reducer.step():
        ...
    """

    def __init__(self, peers: Peers, whole: Callable[[], Iterable[nn.Parameter]], inner: InnerReducer | None) -> None:
        self._peers = peers
        self._whole = whole
        self._inner = inner
        self._backward_expected = False

    def expect(self) -> None:
        """Note that this step has a backward."""
        self._backward_expected = True
        if self._inner is not None:
            self._inner.expect()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Average the gradients that the `with` block adds up."""
        self._backward_expected = False
        with nullcontext() if self._inner is None else self._inner.step():
            yield
        if self._backward_expected:
            with torch.no_grad():
                self._average()

    def retire(self) -> None:
        """Let the replicas' reducer stop watching the parameters."""
        if self._inner is not None:
            self._inner.retire()

    def _average(self) -> None:
        parameters = [parameter for parameter in self._whole() if parameter.requires_grad]
        if not parameters:
            return
        device = parameters[0].device
        # A rank may have used a parameter that the others have not.
        votes = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32, device=device)
        dist.all_reduce(votes, group=self._peers.group)
        used = [parameter for parameter, vote in zip(parameters, votes.tolist(), strict=True) if vote]
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter)
        for group in by_dtype.values():
            gradients = [parameter.grad for parameter in group if parameter.grad is not None]
            # One message, because each has a latency. Divided before the sum: float16 overflows.
            flat = torch.cat([gradient.flatten() for gradient in gradients]).div_(self._peers.degree)
            dist.all_reduce(flat, group=self._peers.group)
            for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
