"""One rank's part of a traced step: its segments as functions of TensorFlow, and what it gets from whom."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import Cut, Node, Output, Segment
from herringbone_parallel.core.pipeline.deferral import Deferring, defer, group_size
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array
from herringbone_parallel.tensorflow.model_parallel.runtime.deferral import (
    PutOff,
    TracedProduct,
    bytes_of,
    find,
    make_put_off,
)
from herringbone_parallel.tensorflow.model_parallel.runtime.functions import Flat, flat


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment that can run: `function` takes the values of `takes` and returns those of `gives`.

    `receives` are (value, edge, rank it comes from); `sends` are (place in `gives`, edge, rank that gets it). It runs
    when the microbatch before has passed the piece of number `behind`.
    """

    phase: str
    behind: int
    function: Flat
    takes: tuple[Output, ...]
    gives: tuple[Output, ...]
    receives: tuple[tuple[Output, int, int], ...]
    sends: tuple[tuple[int, int, int], ...]
    put_off: PutOff | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What a rank does for one microbatch, and what it must have in the end.

    `number` is the same on ranks that have cut the same step. `arguments` are the values that the step is given, in
    their order; `results` those that it returns; `arriving` the edges that bring results from other ranks; `uses` how
    often each value is taken, results included. The values of `sums` are added up over the microbatches: pieces that
    make one add it to its variable, and one that arrives is for the runtime to add.
    """

    number: int
    pieces: tuple[Piece, ...]
    arguments: tuple[Output, ...]
    results: tuple[Output, ...]
    arriving: tuple[tuple[Output, int, int], ...]
    uses: dict[Output, int]
    sums: Sums


class Sums:
    """Variables in which values are added up, microbatch by microbatch.

    They are TensorFlow's, so that the function that makes a gradient adds it while it is in the cache, to memory that
    stays where it is. Returned and added up by whoever called, those of a step were as many bytes again, and cold.
    """

    def __init__(self, tensors: Mapping[Output, Any]) -> None:
        with tf.init_scope():
            self.variables = {
                value: tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
                for value, tensor in tensors.items()
            }
            signature = [tf.TensorSpec((), tf.int32)]
            self._clear = tf.function(self._fill, autograph=False, input_signature=signature)

    def clear(self) -> None:
        """Begin anew; what `read` returned before stays as it was."""
        if self.variables:
            self._clear(0)

    def read(self, value: Output) -> Any:
        """Return a sum, as an array."""
        return as_array(self.variables[value].read_value())

    def _fill(self, number: Any) -> None:
        # Of a number that it knows TensorFlow makes constants, which stay in memory, and are copied.
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
        self._captured = {inner.name: outer for outer, inner in graph.captures}
        self._owners, self._cut = owners, cut
        shape = [
            (operation.type, owner, [str(tensor.shape) for tensor in operation.outputs])
            for operation, owner in zip(self._operations, owners, strict=True)
        ]
        self._number_of = {operation.name: number for number, operation in enumerate(operations)}
        edges = [(edge.value, edge.source, edge.target) for edge in cut.edges]
        self._number = zlib.crc32(repr((shape, edges)).encode())
        for edge in cut.edges:
            self._refuse_what_cannot_travel(self._tensor(edge.value), edge.source, edge.target)

    def program(
        self,
        rank: int,
        arguments: Sequence[Output],
        results: Sequence[Output],
        summed: Collection[Output] = (),
        microbatches: int = 1,
    ) -> Program:
        """Return the program of a rank; values of `summed` are added up, and are not among the results."""
        products = {value: one for value in summed if (one := find(self._tensor(value), self._number_of)) is not None}
        deferring, group = self._defer(rank, products, microbatches)
        segments = [one.segment for one in deferring]
        results = [value for value in results if value not in summed]
        # Sums that one call makes, of all microbatches, are in no variable.
        whole = {value for one in deferring for value in one.deferred if group == microbatches}
        sums = Sums({value: self._tensor(value) for value in summed if value not in whole})
        needed = {*results, *(value for one in deferring for value in (*one.segment.takes, *one.kept))}
        needed.update(self._cut.edges[edge].value for segment in segments for edge in segment.sends)
        put_off = [
            make_put_off(one, products, self._tensor, sums.variables, group) if one.deferred else None
            for one in deferring
        ]
        pieces = tuple(
            self._piece(segment, sums, needed, later) for segment, later in zip(segments, put_off, strict=True)
        )
        arriving = self._cut.arriving(rank, [*results, *summed])
        uses: dict[Output, int] = {}
        takes = [value for piece in pieces for value in (*piece.takes, *(piece.put_off.takes if piece.put_off else ()))]
        for value in [*takes, *results]:
            uses[value] = uses.get(value, 0) + 1
        early = {value for piece in pieces for value, _, _ in piece.receives}
        late = [(value, edge, self._cut.edges[edge].source) for value, edge in arriving.items() if value not in early]
        return Program(self._number, pieces, tuple(arguments), tuple(results), tuple(late), uses, sums)

    def _defer(
        self, rank: int, found: Mapping[Output, TracedProduct], microbatches: int
    ) -> tuple[list[Deferring], int]:
        """Return a rank's segments without the products that are put off, and for how many microbatches those are."""
        products = {value: one.product for value, one in found.items()}
        kept = {value for product in products.values() for value in product.joined}
        kept_bytes, sum_bytes = (sum(bytes_of(self._tensor(value)) for value in values) for values in (kept, products))
        group = group_size(kept_bytes, sum_bytes, microbatches)
        sent = [edge.value for edge in self._cut.edges if edge.source == rank]
        return defer(self._nodes, self._cut.segments[rank], sent, products, group=group), group

    def _tensor(self, value: Output) -> Any:
        return self._operations[value[0]].outputs[value[1]]

    def _piece(self, segment: Segment, sums: Sums, needed: set[Output], put_off: PutOff | None) -> Piece:
        given = [value for value in segment.takes if self._tensor(value).name in self._captured]
        takes = [value for value in segment.takes if value not in given]
        names = [self._tensor(value).name for value in takes]
        captured = {self._tensor(value).name: self._captured[self._tensor(value).name] for value in given}
        # What a segment gives may be what it takes: a result that is an argument.
        gives = [value for value in segment.gives if value in needed]
        added = [sums.variables[value] for value in segment.gives if value in sums.variables]
        returned = [self._tensor(value).name for value in gives]
        returned += [self._tensor(value).name for value in segment.gives if value in sums.variables]
        definition = self._part(segment)

        def compute(*tensors: Any) -> Any:
            capture = tf.compat.v1.get_default_graph().capture
            mapping = dict(zip(names, tensors, strict=True))
            mapping.update({name: capture(outer) for name, outer in captured.items()})
            made = tf.graph_util.import_graph_def(definition, input_map=mapping, return_elements=returned, name="")
            for variable, tensor in zip(added, made[len(gives) :], strict=True):
                variable.assign_add(tensor, read_value=False)
            return made[: len(gives)]

        specs = [tf.TensorSpec(self._tensor(value).shape, self._tensor(value).dtype) for value in takes]
        with tf.init_scope():
            function = flat(tf.function(compute, autograph=False).get_concrete_function(*specs))
        edges = {edge: self._cut.edges[edge] for edge in segment.sends}
        return Piece(
            segment.phase,
            segment.behind,
            function,
            tuple(takes),
            tuple(gives),
            tuple((self._cut.edges[edge].value, edge, self._cut.edges[edge].source) for edge in segment.receives),
            tuple((gives.index(edge.value), number, edge.target) for number, edge in edges.items()),
            put_off,
        )

    def _part(self, segment: Segment) -> Any:
        """Return the definitions of a segment's operations; what they waited for elsewhere has been waited for."""
        inside = {self._operations[number].name for number in segment.nodes}
        part = tf.compat.v1.GraphDef()
        part.versions.CopyFrom(self._definition.versions)
        part.library.CopyFrom(self._definition.library)
        for definition in self._definition.node:
            if definition.name not in inside:
                continue
            node = part.node.add()
            node.CopyFrom(definition)
            kept = [name for name in node.input if not name.startswith("^") or name[1:] in inside]
            del node.input[:]
            node.input.extend(kept)
            node.attr.pop("_class", None)
        return part

    def _refuse_what_cannot_travel(self, tensor: Any, source: int, target: int) -> None:
        if tensor.dtype in (tf.variant, tf.resource, tf.string):
            raise ParallelError(
                f"a {tensor.dtype.name} ({tensor.name!r}) would have to travel from partition {source} to {target}: put"
                " what makes it and what uses it into one `with smp.partition(...)`"
            )
