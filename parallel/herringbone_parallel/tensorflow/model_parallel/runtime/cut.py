"""Makes one rank's program of a traced step: its segments as functions of TensorFlow, and the edges to other ranks."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import Cut, Node, Output, Segment
from herringbone_parallel.core.pipeline.deferral import Deferring, defer, group_size
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array
from herringbone_parallel.tensorflow.model_parallel.runtime.deferral import (
    DeferredProducts,
    TracedProduct,
    bytes_of,
    find,
    make_deferred,
)
from herringbone_parallel.tensorflow.model_parallel.runtime.functions import FlatFunction, flat


class Arrival(NamedTuple):
    """A value that comes over an edge; `source` is the partition that sends it."""

    value: Output
    edge: int
    source: int


class Departure(NamedTuple):
    """A value that leaves over an edge: its position in `Piece.gives`, and the partition that receives it."""

    position: int
    edge: int
    target: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment that can run: `function` takes the values of `takes` and returns those of `gives`.

    A microbatch runs it after the previous microbatch has passed the piece of number `behind`.
    """

    phase: str
    behind: int
    function: FlatFunction
    takes: tuple[Output, ...]
    gives: tuple[Output, ...]
    receives: tuple[Arrival, ...]
    sends: tuple[Departure, ...]
    deferred: DeferredProducts | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The pieces that a rank runs for one microbatch, and the values that it returns in the end.

    `number` is the same on ranks that have the same cut. `arguments` are the values that the step receives, in order;
    `results` those that it returns; `arriving` the results that come from other ranks. `uses` says how often each value
    is taken, results included. The values of `sums` are added up over the microbatches. A piece that computes such a
    value adds it to its variable; the runtime adds a value that arrives.
    """

    number: int
    pieces: tuple[Piece, ...]
    arguments: tuple[Output, ...]
    results: tuple[Output, ...]
    arriving: tuple[Arrival, ...]
    uses: dict[Output, int]
    sums: Sums


class Sums:
    """Variables that add up values, microbatch by microbatch.

    They are TensorFlow's variables, so the function that computes a gradient adds it while the gradient is in the
    cache, to memory that stays in one place. If the caller added the gradients up, all gradients of a step would be
    written a second time, and read from memory that is no longer in the cache.
    """

    def __init__(self, tensors: Mapping[Output, Any]) -> None:
        # The program is made while the user's function is traced; its variables must outlive that trace.
        with tf.init_scope():
            self.variables = {
                value: tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
                for value, tensor in tensors.items()
            }
            signature = [tf.TensorSpec((), tf.int32)]
            self._clear = tf.function(self._fill, autograph=False, input_signature=signature)

    def clear(self) -> None:
        """Set all sums to 0; arrays that `read` returned before keep their values."""
        if self.variables:
            self._clear(0)

    def read(self, value: Output) -> Any:
        """Return a sum, as an array."""
        return as_array(self.variables[value].read_value())

    def _fill(self, number: Any) -> None:
        # The number is an argument. From a number known at trace time TensorFlow would make constants as large as the
        # variables: they would stay in memory, and each call would copy them.
        for variable in self.variables.values():
            variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)), read_value=False)


class Cutter:
    """Makes a rank's program of a graph that has been cut.

    program = Cutter(graph, operations, owners, cut).program(rank, arguments, results)
    """

    def __init__(
        self, graph: Any, nodes: Sequence[Node], operations: Sequence[Any], owners: Sequence[int], cut: Cut
    ) -> None:
        self._nodes, self._operations = nodes, operations
        self._definition = graph.as_graph_def()
        # The variables of the script that the graph reads, by their names in the graph.
        self._captured = {inner.name: outer for outer, inner in graph.captures}
        self._owners, self._cut = owners, cut
        shape = [
            (operation.type, owner, [str(tensor.shape) for tensor in operation.outputs])
            for operation, owner in zip(self._operations, owners, strict=True)
        ]
        self._number_of = {operation.name: number for number, operation in enumerate(operations)}
        edges = [(edge.value, edge.source, edge.target) for edge in cut.edges]
        # A checksum, so that ranks with different cuts notice it at the first message. Names are left out: Keras
        # numbers layers by what a process has created before.
        self._number = zlib.crc32(repr((shape, edges)).encode())
        for edge in cut.edges:
            self._refuse_untransferable(self._tensor(edge.value), edge.source, edge.target)

    def program(
        self,
        rank: int,
        arguments: Sequence[Output],
        results: Sequence[Output],
        summed: Collection[Output] = (),
        microbatches: int = 1,
    ) -> Program:
        """Return the program of a rank; values of `summed` are added up, and are not among the results."""
        # Only sums may be put off: no other rank and no line of the script reads their single microbatches.
        products = {
            value: product for value in summed if (product := find(self._tensor(value), self._number_of)) is not None
        }
        deferring, group = self._defer(rank, products, microbatches)
        segments = [deferred.segment for deferred in deferring]
        results = [value for value in results if value not in summed]
        # A group of all microbatches computes a whole sum in one call, so that sum needs no variable.
        whole = {value for deferred in deferring for value in deferred.deferred if group == microbatches}
        sums = Sums({value: self._tensor(value) for value in summed if value not in whole})
        # A segment may compute values that no piece of this program takes, because a sum has replaced them.
        needed = {*results, *(value for deferred in deferring for value in (*deferred.segment.takes, *deferred.kept))}
        needed.update(self._cut.edges[edge].value for segment in segments for edge in segment.sends)
        deferred_products = [
            make_deferred(deferred, products, self._tensor, sums.variables, group) if deferred.deferred else None
            for deferred in deferring
        ]
        pieces = tuple(
            self._piece(segment, sums, needed, later)
            for segment, later in zip(segments, deferred_products, strict=True)
        )
        arriving = self._cut.arriving(rank, [*results, *summed])
        uses: dict[Output, int] = {}
        takes = [
            value for piece in pieces for value in (*piece.takes, *(piece.deferred.takes if piece.deferred else ()))
        ]
        for value in [*takes, *results]:
            uses[value] = uses.get(value, 0) + 1
        # A result that a piece has received already must not be received again at the end.
        early = {arrival.value for piece in pieces for arrival in piece.receives}
        late = tuple(
            Arrival(value, edge, self._cut.edges[edge].source) for value, edge in arriving.items() if value not in early
        )
        return Program(self._number, pieces, tuple(arguments), tuple(results), late, uses, sums)

    def _defer(
        self, rank: int, traced_products: Mapping[Output, TracedProduct], microbatches: int
    ) -> tuple[list[Deferring], int]:
        """Return a rank's segments without the products that are put off, and the number of microbatches in a group."""
        products = {value: traced.product for value, traced in traced_products.items()}
        kept = {value for product in products.values() for value in product.joined}
        kept_bytes, sum_bytes = (sum(bytes_of(self._tensor(value)) for value in values) for values in (kept, products))
        group = group_size(kept_bytes, sum_bytes, microbatches)
        # Another rank waits for these values, so they are never put off.
        sent = [edge.value for edge in self._cut.edges if edge.source == rank]
        return defer(self._nodes, self._cut.segments[rank], sent, products, group=group), group

    def _tensor(self, value: Output) -> Any:
        return self._operations[value[0]].outputs[value[1]]

    def _piece(self, segment: Segment, sums: Sums, needed: set[Output], deferred: DeferredProducts | None) -> Piece:
        captures = [value for value in segment.takes if self._tensor(value).name in self._captured]
        # TensorFlow passes captures by itself, so only the other values are arguments of the function.
        takes = [value for value in segment.takes if value not in captures]
        names = [self._tensor(value).name for value in takes]
        captured = {self._tensor(value).name: self._captured[self._tensor(value).name] for value in captures}
        # A segment may give a value that it takes: a result of the step that is an argument.
        gives = [value for value in segment.gives if value in needed]
        added = [sums.variables[value] for value in segment.gives if value in sums.variables]
        returned = [self._tensor(value).name for value in gives]
        returned += [self._tensor(value).name for value in segment.gives if value in sums.variables]
        definition = self._part(segment)

        def compute(*tensors: Any) -> Any:
            # The variables of the traced graph become captures of this function, so it reads their current values.
            capture = tf.compat.v1.get_default_graph().capture
            mapping = dict(zip(names, tensors, strict=True))
            mapping.update({name: capture(outer) for name, outer in captured.items()})
            values = tf.graph_util.import_graph_def(definition, input_map=mapping, return_elements=returned, name="")
            for variable, tensor in zip(added, values[len(gives) :], strict=True):
                variable.assign_add(tensor, read_value=False)
            return values[: len(gives)]

        specs = [tf.TensorSpec(self._tensor(value).shape, self._tensor(value).dtype) for value in takes]
        with tf.init_scope():
            function = flat(tf.function(compute, autograph=False).get_concrete_function(*specs))
        edges = self._cut.edges
        return Piece(
            segment.phase,
            segment.behind,
            function,
            tuple(takes),
            tuple(gives),
            tuple(Arrival(edges[edge].value, edge, edges[edge].source) for edge in segment.receives),
            tuple(Departure(gives.index(edges[edge].value), edge, edges[edge].target) for edge in segment.sends),
            deferred,
        )

    def _part(self, segment: Segment) -> Any:
        """Return the definitions of a segment's operations."""
        inside = {self._operations[number].name for number in segment.nodes}
        part = tf.compat.v1.GraphDef()
        part.versions.CopyFrom(self._definition.versions)
        # The bodies of loops and branches are functions of the library.
        part.library.CopyFrom(self._definition.library)
        for definition in self._definition.node:
            if definition.name not in inside:
                continue
            node = part.node.add()
            node.CopyFrom(definition)
            # "^name" waits for an operation. One outside of this segment has run by then, because segments run in
            # order.
            kept = [name for name in node.input if not name.startswith("^") or name[1:] in inside]
            del node.input[:]
            node.input.extend(kept)
            # This attribute asks for the device of another operation, which the part may lack.
            node.attr.pop("_class", None)
        return part

    def _refuse_untransferable(self, tensor: Any, source: int, target: int) -> None:
        if tensor.dtype in (tf.variant, tf.resource, tf.string):
            raise ParallelError(
                f"a {tensor.dtype.name} ({tensor.name!r}) would have to travel from partition {source} to {target}: put"
                " what makes it and what uses it into one `with smp.partition(...)`"
            )
