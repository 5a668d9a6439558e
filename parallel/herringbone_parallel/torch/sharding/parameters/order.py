"""Check that all ranks gather and reduce the blocks of sharded models in the same order.

torch matches the collectives of `fully_shard` by their order alone. If one rank leaves a block out, others mix values
of two blocks without an error, or wait forever. So ranks compare their calls over gloo, in a group of its own:

    on CPUs, the first 500 calls    before each gather and each sum, which costs as much as a small block's gather
    otherwise                       at the end of each backward: on CUDA, every processor is ahead of its device by then

torch before 2.9 has no place for the comparison, and its ranks compare nothing.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.library_hooks import HAS_COLLECTIVES

# Calls that a rank keeps for the error, which names the first difference.
_KEPT_CALLS = 1000
_COMPARED_CALLS = 500


class CallOrder:
    """The collectives of this rank's sharded models since the last comparison.

    order = CallOrder(group, each=True)
    order.watch(block, "blocks.0 of Net")
    """

    def __init__(self, group: dist.ProcessGroup, *, each: bool) -> None:
        self._group = group
        self._compared_calls = _COMPARED_CALLS if each else 0
        self._calls: deque[str] = deque(maxlen=_KEPT_CALLS)
        self._digest = 0
        # The number of the backward whose end is compared.
        self._backward = -1

    def watch(self, unit: Any, name: str) -> None:
        """Note the collectives of a module that `fully_shard` has changed."""
        if HAS_COLLECTIVES:
            gather, sums = _classes()
            unit.set_custom_all_gather(gather(self, name, unit))
            unit.set_custom_reduce_scatter(sums(self, name))

    def note(self, call: str) -> None:
        """Note a call; raises `ParallelError` on all ranks if they make different ones."""
        self._calls.append(call)
        self._digest = zlib.crc32(call.encode(), self._digest)
        if self._compared_calls:
            self._compared_calls -= 1
            self._compare()

    def note_in_backward(self, call: str) -> None:
        """Note a call in a backward, and compare the ranks' calls at its end."""
        task = torch._C._current_graph_task_id()
        if task not in (-1, self._backward):
            self._backward = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        self.note(call)

    def _end_backward(self) -> None:
        self.note("ends a backward")
        if not self._compared_calls:
            self._compare()

    def _compare(self) -> None:
        # Both extremes with one operation.
        digests = torch.tensor([self._digest, -self._digest])
        dist.all_reduce(digests, dist.ReduceOp.MAX, group=self._group)
        if digests[0] == -digests[1]:
            self._calls.clear()
            return
        ranks: list[Any] = [None] * self._group.size()
        dist.all_gather_object(ranks, list(self._calls), group=self._group)
        raise ParallelError(difference(ranks))


def difference(calls: list[list[str]]) -> str:
    """Return the error for ranks with different `calls`, by rank. Pure."""
    here = next((here for here in zip_longest(*calls, fillvalue="does nothing more") if len(set(here)) > 1), calls)
    other = next((rank for rank, call in enumerate(here) if call != here[0]), -1)
    return (
        f"the ranks do not use the same blocks of the sharded model: rank 0 {here[0]}, while rank {other}"
        f" {here[other]}. Every rank must call the same blocks in the same order, in training and in evaluation: no"
        " branch on the rank or its data. Call a block that a rank has no rows for with any rows, and add its result"
        " times 0"
    )


@functools.cache
def _classes() -> tuple[Any, Any]:
    class Gather(collectives.DefaultAllGather):
        def __init__(self, order: CallOrder, name: str, unit: Any) -> None:
            super().__init__()
            self._order, self._name, self._unit = order, name, unit

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self._order.note(f"calls {self._name}" if self._unit.training else f"calls {self._name} in evaluation")
            return super().__call__(*args, **kwargs)

    class Sum(collectives.DefaultReduceScatter):
        def __init__(self, order: CallOrder, name: str) -> None:
            super().__init__()
            self._order, self._name = order, name
            self._has_input = False

        def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            # Memory for a sum's input, and then for its output. A lone shard has no collective, and is no call.
            self._has_input = not self._has_input
            if self._has_input:
                self._order.note_in_backward(f"sums the gradients of {self._name}")
            return super().allocate(*args, **kwargs)

    return Gather, Sum
