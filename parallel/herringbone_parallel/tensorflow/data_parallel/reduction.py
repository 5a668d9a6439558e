"""Sums of gradients that travel while the backward pass still runs, inside and outside of a graph.

In a graph every bucket has two operations. Its `start` runs as soon as the bucket's last gradient is computed, and
hands the bucket to the engine. Its `finish` waits for the sum:

    backward   ... g3 ........ g2 ........ g1 ........ g0
    [1] starts          [3]-------->[2,1]------------------>[0]        a chain: every rank submits in the same order
    [2] finishes                                             |->[3]->[2,1]->[0]

[1] TensorFlow runs stateful operations in the order of the program. A `start` is stateful and a `finish` is not, or it
    would hold up the starts behind it. TensorFlow does not fold a `finish` into a constant, because its input is the
    result of a `start`.
[2] A `finish` holds a thread of the executor while it waits, and there may be only one or two threads. So the first
    `finish` waits until every bucket has been started, and each further one waits for the one before.
[3] The first `start` also reads weights to compare them. TensorFlow does not know that, and would let a write that
    needs no gradient, such as a weight decay, run before it on one rank and after it on another. Such writes wait for
    earlier reads in the graph; so each weight is read once more, after the `start`.

Both are Python functions behind `tf.numpy_function`, which hands tensors over without a copy. The engine's own thread
needs no Python (docs/decisions/020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.steps import tick
from herringbone_parallel.reduce.advising import SumObserver
from herringbone_parallel.reduce.comparison import Comparison
from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_parallel.reduce.fused import Array, Bucket, Spec

# A collection of each graph with the operation that was last chained by `start_in_order`.
_LAST_STARTED = "herringbone_last_started"
# Far more sums than a step starts.
_MOST_RUNNING = 100_000

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def not_converted(function: Decorated) -> Decorated:
    """Keep AutoGraph from rewriting a function and all functions that it calls."""
    # AutoGraph would turn this library's `if` and `for` into operations of the user's graph.
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class _RunningSum(NamedTuple):
    array: Array
    handle: Handle


class RunningSums:
    """Sums that have been started, by ticket.

    No lock: in a graph the chain of starts runs one `add` after the other, and `wait` removes a key of its own.
    """

    def __init__(self) -> None:
        self._sums: dict[int, _RunningSum] = {}
        self._tickets = 0

    def add(self, array: Array, handle: Handle) -> np.int64:
        """Keep a running sum and the array that receives it; return its ticket."""
        self._tickets += 1
        self._sums[self._tickets] = _RunningSum(array, handle)
        # TensorFlow prunes a `finish` whose result is unused. The sum then stays here, so drop the oldest one.
        if len(self._sums) > _MOST_RUNNING:
            del self._sums[next(iter(self._sums))]
        return np.int64(self._tickets)

    def wait(self, ticket: Any) -> Array:
        """Wait for a sum and return it."""
        array, handle = self._sums.pop(int(ticket))
        # The handle releases Python's lock while it waits, so other operations behind `tf.numpy_function` can run.
        handle.wait()
        return array


class Reduction:
    """The sum, or the average, of the same list of tensors in every step.

    reduction = Reduction(engine, buckets, comparison, op="average")
    sums = reduction(tensors)

    `compared` are the variables that the comparison reads, `starts` records the times at which sums start and end.
    """

    def __init__(
        self,
        engine: Engine,
        buckets: Sequence[Bucket],
        comparison: Comparison,
        *,
        op: str,
        compared: Sequence[tf.Variable] = (),
        starts: SumObserver | None = None,
    ) -> None:
        self._engine, self._buckets, self._comparison, self._op = engine, tuple(buckets), comparison, op
        self._running = RunningSums()
        self._compared, self._starts = tuple(compared), starts

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of the tensors, in the same order."""
        return self._eager(tensors) if tf.executing_eagerly() else self._graph(tensors)

    def _start(self, number: int, gradients: Sequence[Array]) -> np.int64:
        if number == 0:
            # Bucket 0 starts first on every rank, so ranks with different lists fail here, before any sum.
            self._comparison.before_sum(self._engine)
        bucket = self._buckets[number]
        # `fill` copies the gradients into one new array. The engine may therefore sum in place.
        flat = bucket.fill(gradients)
        if self._starts is not None:
            self._starts.started(number)
        # numpy exposes no buffer of bfloat16; the engine gets the bytes and the name of the type.
        stored = flat.view(np.uint16) if bucket.element == "bfloat16" else flat
        handle = self._engine.all_reduce(stored, dtype=bucket.element, op=self._op)
        return self._running.add(flat, handle)

    def _finish(self, number: int, ticket: Any) -> list[Array]:
        total = self._running.wait(ticket)
        if self._starts is not None:
            self._starts.ended()
        if number == len(self._buckets) - 1:
            # The gradients of a step are complete. A function that is traced again continues with its comparison.
            tick(self._comparison)
        return self._buckets[number].pieces(total)

    def _eager(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Start every bucket before waiting for any, so that several travel at once.
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
        with tf.control_dependencies(tickets[:1]):
            for variable in self._compared:
                variable.read_value()  # [3]
        sums: list[Any] = [None] * len(tensors)
        # [2] The first `finish` depends on the last start, each further one on the one before.
        before = tickets[-1:]
        for number, bucket in enumerate(self._buckets):
            with tf.control_dependencies(before):
                # The copy of the ticket carries the dependency into the `finish`, as its input.
                ticket = tf.identity(tickets[number])
            types = [tensors[member].dtype for member in bucket.members]
            pieces = tf.numpy_function(self._finisher(number), [ticket], types, stateful=False)
            for member, piece in zip(bucket.members, pieces, strict=True):
                # `numpy_function` forgets shapes, and optimizers need them.
                piece.set_shape(tensors[member].shape)
                sums[member] = piece
            before = pieces[:1]
        return sums

    # Methods, because a lambda in the loop would see the last number only.
    def _starter(self, number: int) -> Callable[..., np.int64]:
        return lambda *gradients: self._start(number, gradients)

    def _finisher(self, number: int) -> Callable[[Any], list[Array]]:
        return lambda ticket: self._finish(number, ticket)


def start_in_order(function: Callable[..., Any], tensors: Sequence[tf.Tensor], types: Any) -> Any:
    """Add a call of a Python function to the current graph, after all earlier such calls; return its results."""
    graph = tf.compat.v1.get_default_graph()
    refuse_compiled(graph)
    # The engine matches the sums of ranks by their order. Without the chain, the executor of each rank would choose
    # an order of its own.
    last = graph.get_collection_ref(_LAST_STARTED)
    with tf.control_dependencies(last):
        results = tf.numpy_function(function, tensors, types)
    last[:] = [results if isinstance(results, tf.Tensor) else results[0]]
    return results


def refuse_compiled(graph: Any) -> None:
    """Raise `ParallelError` in a function that XLA compiles: it cannot leave for another rank and come back."""
    # A loop or a branch inside the compiled function has a graph of its own, so look at the outer graphs, too.
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
    """Return the specs that ranks must agree on, and the types of the elements as numpy has them."""
    specs = []
    for name, tensor in zip(names, tensors, strict=True):
        if not tensor.shape.is_fully_defined():
            raise ParallelError(
                f"the shape of {name} is {tensor.shape}: it must be known when the function is traced, because its"
                " position in a bucket is fixed then"
            )
        specs.append(Spec(name, tensor.dtype.name, tuple(tensor.shape.as_list())))
    return specs, [np.dtype(tensor.dtype.as_numpy_dtype) for tensor in tensors]


def order_of_readiness(tensors: Sequence[tf.Tensor]) -> list[int]:
    """Return the numbers of the tensors in the order in which they are computed.

    A graph has its operations in the order in which the backward pass added them. In eager code all gradients exist
    already; the order is then that of a backward pass, last variable first.
    """
    backwards = sorted(range(len(tensors)), reverse=True)
    if tf.executing_eagerly():
        return backwards
    names = [operation.name for operation in tf.compat.v1.get_default_graph().get_operations()]
    position_of = {name: position for position, name in enumerate(names)}
    # The sort is stable, so tensors of another graph, with position -1, keep the backward order.
    return sorted(backwards, key=lambda number: position_of.get(tensors[number].op.name, -1))
