"""Sums of gradients that travel while the backward pass still runs, inside and outside of a graph.

In a graph every bucket has a `start`, which runs as soon as the bucket's last gradient is there and hands it to the
engine, and a `finish`, which waits for its sum:

    backward   ... g3 ........ g2 ........ g1 ........ g0
    starts          [3]-------->[2,1]------------------>[0]        a chain: every rank submits in the same order
    finishes                                             |->[3]->[2,1]->[0]

A `finish` holds a thread of the executor while it waits, of which there may be one or two: so the first one waits until
everything has been started, and the next for the one before. Both are Python behind `tf.numpy_function`, which hands
tensors over without a copy; the engine's thread needs no Python (docs/decisions/020).

TensorFlow runs stateful operations in the order of the program: a `start` is one, a `finish` is not, or it would hold
up the starts behind it. It is not taken for a constant and run before its time either: its input is a start's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.advising import SumObserver
from herringbone_parallel.reduce.comparison import Comparison
from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_parallel.reduce.fused import Array, Bucket, Spec

# What runs in the background has to start in the same order on every rank: a graph keeps the last operation that did in
# this collection.
_LAST_STARTED = "herringbone_last_started"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def not_converted(function: Decorated) -> Decorated:
    """Keep AutoGraph from rewriting a function, and all that it calls: ours are no part of the user's model."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class UnderWay:
    """Sums that have been started, by ticket; what a graph never asks for is forgotten in time."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Array, Handle]] = {}
        self._tickets = 0

    def add(self, array: Array, handle: Handle) -> np.int64:
        """Keep a sum and the array that it will be in; return its ticket."""
        self._tickets += 1
        self._sums[self._tickets] = array, handle
        if len(self._sums) > _MOST_UNDER_WAY:
            del self._sums[next(iter(self._sums))]
        return np.int64(self._tickets)

    def wait(self, ticket: Any) -> Array:
        """Wait for a sum, without Python's lock, and return it."""
        array, handle = self._sums.pop(int(ticket))
        handle.wait()
        return array


# Far more than a step starts.
_MOST_UNDER_WAY = 100_000


class Reduction:
    """The sum, or the average, of the same list of tensors in every step.

    reduction = Reduction(engine, buckets, comparison, op="average")
    sums = reduction(tensors)

    `starts` is told when sums start and end.
    """

    def __init__(
        self,
        engine: Engine,
        buckets: Sequence[Bucket],
        comparison: Comparison,
        *,
        op: str,
        starts: SumObserver | None = None,
    ) -> None:
        self._engine, self._buckets, self._comparison, self._op = engine, tuple(buckets), comparison, op
        self._under_way = UnderWay()
        self._starts = starts

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of the tensors, each in its place."""
        return self._eager(tensors) if tf.executing_eagerly() else self._graph(tensors)

    def _start(self, number: int, gradients: Sequence[Array]) -> np.int64:
        if number == 0:
            self._comparison.before_sum(self._engine)
        bucket = self._buckets[number]
        flat = bucket.fill(gradients)
        if self._starts is not None:
            self._starts.started(number)
        stored = flat.view(np.uint16) if bucket.element == "bfloat16" else flat
        handle = self._engine.all_reduce(stored, dtype=bucket.element, op=self._op)
        return self._under_way.add(flat, handle)

    def _finish(self, number: int, ticket: Any) -> list[Array]:
        total = self._under_way.wait(ticket)
        if self._starts is not None:
            self._starts.ended()
        return self._buckets[number].pieces(total)

    def _eager(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        tickets = [
            self._start(number, [tensors[member].numpy() for member in bucket.members])
            for number, bucket in enumerate(self._buckets)
        ]
        sums: list[Any] = [None] * len(tensors)
        for number, bucket in enumerate(self._buckets):
            for member, piece in zip(bucket.members, self._finish(number, tickets[number]), strict=True):
                sums[member] = tf.convert_to_tensor(piece)
        return sums

    def _graph(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        tickets = [
            start_in_order(self._starter(number), [tensors[member] for member in bucket.members], tf.int64)
            for number, bucket in enumerate(self._buckets)
        ]
        sums: list[Any] = [None] * len(tensors)
        before = tickets[-1:]
        for number, bucket in enumerate(self._buckets):
            with tf.control_dependencies(before):
                ticket = tf.identity(tickets[number])
            types = [tensors[member].dtype for member in bucket.members]
            pieces = tf.numpy_function(self._finisher(number), [ticket], types, stateful=False)
            for member, piece in zip(bucket.members, pieces, strict=True):
                piece.set_shape(tensors[member].shape)
                sums[member] = piece
            before = pieces[:1]
        return sums

    def _starter(self, number: int) -> Callable[..., np.int64]:
        return lambda *gradients: self._start(number, gradients)

    def _finisher(self, number: int) -> Callable[[Any], list[Array]]:
        return lambda ticket: self._finish(number, ticket)


def start_in_order(function: Callable[..., Any], tensors: Sequence[tf.Tensor], types: Any) -> Any:
    """Add a call of a Python function to the current graph, behind all that were added so; return its results."""
    graph = tf.compat.v1.get_default_graph()
    refuse_compiled(graph)
    last = graph.get_collection_ref(_LAST_STARTED)
    with tf.control_dependencies(last):
        results = tf.numpy_function(function, tensors, types)
    last[:] = [results if isinstance(results, tf.Tensor) else results[0]]
    return results


def refuse_compiled(graph: Any) -> None:
    """Raise `ParallelError` in a function that XLA compiles: it cannot leave for another rank and come back."""
    while graph is not None:
        context = graph._get_control_flow_context() if hasattr(graph, "_get_control_flow_context") else None
        while context is not None:
            if context.IsXLAContext():
                raise ParallelError(
                    "gradients cannot be summed over the ranks inside a function that XLA compiles (jit_compile=True):"
                    " with Keras, model.compile(..., jit_compile=False); in a loop of your own, compile the function"
                    " that computes the loss and its gradients, and sum and apply them in an outer tf.function"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


def described(names: Sequence[str], tensors: Sequence[tf.Tensor]) -> tuple[list[Spec], list[np.dtype[Any]]]:
    """Return what ranks must agree on of these tensors, and the types of their elements as numpy has them."""
    specs = []
    for name, tensor in zip(names, tensors, strict=True):
        if not tensor.shape.is_fully_defined():
            raise ParallelError(
                f"the shape of {name} is {tensor.shape}: it must be known when the function is traced, as its place in"
                " a bucket is"
            )
        specs.append(Spec(name, tensor.dtype.name, tuple(tensor.shape.as_list())))
    return specs, [np.dtype(tensor.dtype.as_numpy_dtype) for tensor in tensors]


def order_of_readiness(tensors: Sequence[tf.Tensor]) -> list[int]:
    """Return the tensors' numbers in the order in which they are computed.

    A graph has its operations in the order in which the backward pass added them; outside of a graph all are there
    already, and the order is that of a backward pass, last variable first.
    """
    backwards = sorted(range(len(tensors)), reverse=True)
    if tf.executing_eagerly():
        return backwards
    names = [operation.name for operation in tf.compat.v1.get_default_graph().get_operations()]
    added = {name: place for place, name in enumerate(names)}
    return sorted(backwards, key=lambda number: added.get(tensors[number].op.name, -1))
