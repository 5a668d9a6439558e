"""Gluon's trainer, with steps by the averages of all ranks' gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.steps import tick
from herringbone_parallel.mxnet.arrays import element_of, fetched, store
from herringbone_parallel.mxnet.parameters import data_of
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.comparison import Comparison, sampled
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.fused import Bucket, Spec, cut
from herringbone_parallel.reduce.horovod import Compression, engine

_REMEDY = (
    "call hvd.broadcast_parameters(net.collect_params(), root_rank=0) before the first step, or set the same seed"
    " (mx.random.seed) on all ranks before net.initialize()"
)


class DistributedTrainer(mx.gluon.Trainer):
    """A Gluon trainer whose steps apply the averages of all ranks' gradients.

        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        ...
        loss.backward()
        trainer.step(len(batch))                # this rank's own batch

    Give all ranks batches of the same size; otherwise the average is not that of the joint batch. MXNet computes in the
    background: the last layers' gradients are summed while those of the first layers are still being computed. You may
    call `allreduce_grads` and `update` separately, to clip gradients in between. Raises `ParallelError` for unsupported
    arguments and, in the first two steps and on all ranks, if the ranks' gradients or weights differ.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: str | None = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,  # noqa: ARG002 - the order of calls identifies trainers
        **others: Any,
    ) -> None:
        refuse(gradient_predivide_factor, others, "hvd.DistributedTrainer")
        self._engine, self._wire = engine(), compression
        self._reduction: Reduction | None = None
        # Without a key-value store, Gluon calls `_allreduce_grads` and leaves the sums to this class.
        super().__init__(params, optimizer, optimizer_params, kvstore=None)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients over all ranks and update the parameters; `batch_size` is this rank's batch."""
        self._refuse_stale(ignore_stale_grad)
        super().step(batch_size, ignore_stale_grad)
        tick(self)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters, after `allreduce_grads`."""
        self._refuse_stale(ignore_stale_grad)
        super().update(batch_size, ignore_stale_grad)
        tick(self)

    def _allreduce_grads(self) -> None:
        """Average the gradients; Gluon calls this method to sum over workers."""
        if self._engine.size == 1:
            return
        if self._reduction is None:
            # In the first step rather than in `__init__`, because parameters may get their shapes from the first batch.
            trained = [parameter for parameter in self._params if parameter.grad_req != "null"]
            self._reduction = Reduction(self._engine, trained, self._wire)
        self._reduction()

    def _refuse_stale(self, ignored: bool) -> None:
        if ignored and self._engine.size > 1:
            raise ParallelError(
                "ignore_stale_grad=True: ranks that skip different parameters would end with different weights; set"
                " grad_req='null' for parameters that are not trained"
            )


class Reduction:
    """Averages the gradients of the same parameters in every step."""

    def __init__(self, engine: Engine, parameters: Sequence[Any], wire: str | None) -> None:
        self._engine, self._parameters, self._wire = engine, parameters, wire
        specs = [_spec(parameter) for parameter in parameters]
        # A backward computes the last layers' gradients first.
        order = range(len(specs) - 1, -1, -1)
        self._buckets = cut(specs, [np.dtype(spec.dtype) for spec in specs], order, cost=session.cost())
        lines = [f"{spec.name}: {spec.dtype} {list(spec.shape)}" for spec in specs]
        self._comparison = Comparison("\n".join(lines), self._weights, _REMEDY, self._few_weights)

    def __call__(self) -> None:
        """Replace the gradients by their averages."""
        self._comparison.before_sum(self._engine)
        sums = []
        for bucket in self._buckets:
            flat = bucket.fill([self._gradient(member) for member in bucket.members])
            # Only fp32 can travel in 16 bits; other types travel unchanged.
            wire = self._wire if bucket.element == "float32" else None
            # Fetching waits for MXNet; buckets that have been submitted travel meanwhile.
            sums.append((bucket, flat, self._engine.all_reduce(flat, op="average", wire=wire)))
        for bucket, flat, handle in sums:
            handle.wait()
            self._store(bucket, flat)

    def _gradient(self, member: int) -> Array:
        parameter = self._parameters[member]
        return fetched(parameter.list_grad()[0], f"the gradient of {parameter.name}")

    def _store(self, bucket: Bucket, flat: Array) -> None:
        for member, piece in zip(bucket.members, bucket.pieces(flat), strict=True):
            store(piece, self._parameters[member].list_grad()[0])

    def _weights(self) -> list[Array]:
        return [data_of(parameter).asnumpy() for parameter in self._parameters]

    def _few_weights(self) -> list[Array]:
        weights = [data_of(parameter) for parameter in self._parameters]
        return [weights[position].asnumpy() for position in sampled([weight.size for weight in weights])]


def refuse(predivide_factor: float, others: dict[str, Any], what: str) -> None:
    """Raise `ParallelError` for Horovod's unsupported arguments."""
    if predivide_factor != 1.0:
        raise ParallelError(
            f"gradient_predivide_factor={predivide_factor}: sums are computed in fp32 and then divided"
            " once; leave it out"
        )
    if unknown := sorted(name for name, value in others.items() if value):
        raise ParallelError(f"{what} has no {', '.join(unknown)} here: leave it out")


def _spec(parameter: Any) -> Spec:
    data = data_of(parameter)
    # Gluon numbers the blocks of a kind within a process, so a block that only one rank makes would shift the numbers.
    name = re.sub(r"\d+", "", parameter.name)
    return Spec(name, element_of(data), tuple(data.shape))
