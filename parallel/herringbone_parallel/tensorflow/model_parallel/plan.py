"""Makes this rank's program from a step function and the shapes of a microbatch.

[1] trace      the step function becomes one graph, the same on every rank (`placement.trace`)
[2] place      each operation and variable gets a partition (`placement.owners`, `placement.placement`)
[3] cut        this rank's operations become segments and edges (`core.pipeline.dataflow`)
[4] Plan       runs the segments, in eager code or inside the user's `tf.function`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import Output, assign_ranks, cut
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array
from herringbone_parallel.tensorflow.model_parallel.output import SummedOutput
from herringbone_parallel.tensorflow.model_parallel.placement.owners import (
    model_handles,
    partition_by_decision,
    partition_by_hand,
    settle,
)
from herringbone_parallel.tensorflow.model_parallel.placement.partitioning import agree
from herringbone_parallel.tensorflow.model_parallel.placement.placement import Placement
from herringbone_parallel.tensorflow.model_parallel.placement.trace import (
    Traced,
    refuse_assignments,
    trace,
    variable_of,
)
from herringbone_parallel.tensorflow.model_parallel.results import (
    ResultSlot,
    dense_of,
    is_result,
    of_outputs,
    sparse_of,
    template_of,
    variables_of,
)
from herringbone_parallel.tensorflow.model_parallel.runtime.cut import Cutter, Program
from herringbone_parallel.tensorflow.model_parallel.runtime.pipeline import Run
from herringbone_parallel.tensorflow.model_parallel.split import is_tensor
from herringbone_parallel.tensorflow.model_parallel.state import State


@dataclass
class Plan:
    """This rank's part of a step, for arguments of certain shapes."""

    # Makes a program that adds up these values over so many microbatches.
    make: Callable[[Collection[Output], int], Program]
    results: list[Output]
    # The positions of the arguments that this rank uses.
    used: list[int]
    # The step's result, with a `ResultSlot` for each tensor that this rank gets.
    template: Any
    specs: list[tf.TensorSpec]
    # The handles of this rank's variables, which the step reads and may change.
    handles: list[Any]
    # The positions, among the results, of gradients that can be added up as they come; and the variable of each.
    summed: list[int]
    variables: list[Any]
    # The positions of the values and of the indices of each sparse gradient.
    sparse: list[tuple[int, int]]
    # The number of runs that have begun.
    runs: int = 0
    _programs: dict[int, Program] = field(default_factory=dict)

    def program(self, adds: int) -> Program:
        """Return the program that adds up gradients over `adds` microbatches; with 0 it returns them one by one."""
        if adds not in self._programs:
            self._programs[adds] = self.make([self.results[position] for position in self.summed] if adds else (), adds)
        return self._programs[adds]

    def at_once(self, run: Run, tensors: Sequence[Sequence[Any]], *, summed: bool) -> list[list[Any]]:
        """Run the pipeline outside of a graph; return the results of each microbatch.

        With `summed` all microbatches share one `SummedOutput` per gradient.
        """
        positions = self.summed if summed else []
        results = run.run(self._used_of(tensors), [self.results[position] for position in positions])
        for position in positions:
            parts = [leaves[position] for leaves in results]
            total = tf.convert_to_tensor(run.sums[self.results[position]])
            output = SummedOutput(total, len(tensors), functools.partial(list, parts))
            for leaves in results:
                leaves[position] = output
        return results

    def in_graph(self, make_run: Callable[..., Run], tensors: Sequence[Sequence[Any]], sample: Any) -> list[list[Any]]:
        """Add a call of the pipeline to the graph that is being traced; return the results of each microbatch.

        `make_run` gets the value of the tensor `sample`. All microbatches share one `SummedOutput` per gradient.
        """
        width, count = len(self.used), len(tensors)
        plain = [position for position in range(len(self.specs)) if position not in self.summed]
        call = _Call()

        # Runs in a thread of TensorFlow's executor, once per execution of the user's graph.
        def run_flat(sample: Any, *flat: Any) -> list[Any]:
            run = make_run(sample, adds=0 if call.one_by_one else count)
            parts = [flat[number * width : (number + 1) * width] for number in range(count)]
            results = run.run(parts, [self.results[position] for position in self.summed])
            if call.one_by_one:
                call.keep([[leaves[position] for position in self.summed] for leaves in results])
                results = [[leaves[position] for position in plain] for leaves in results]
            sums = [run.sums[self.results[position]] for position in self.summed]
            return [np.int64(call.ticket), *sums, *(as_array(tensor) for leaves in results for tensor in leaves)]

        types = [tf.int64, *(self.specs[position].dtype for position in self.summed)]
        types += [self.specs[position].dtype for position in plain] * count

        def step(*flat: Any) -> Any:
            # TensorFlow orders operations by the variables that they touch. Python code hides the variables of this
            # call, so the call depends on their handles.
            touched = [tf.identity(tf.compat.v1.get_default_graph().capture(handle)) for handle in self.handles]
            with tf.control_dependencies(touched):
                return tf.numpy_function(run_flat, list(flat), types, stateful=True)

        used = [tensor for leaves in self._used_of(tensors) for tensor in leaves]
        returned = tf.function(step, autograph=False)(sample, *used)
        ticket, *flat = [returned] if isinstance(returned, tf.Tensor) else returned
        results: list[list[Any]] = [[None] * len(self.specs) for _ in range(count)]
        for number, position in enumerate(self.summed):
            # `numpy_function` forgets shapes, and the code around the step needs them.
            flat[number].set_shape(self.specs[position].shape)
            output = SummedOutput(flat[number], count, functools.partial(self._fetch, call, ticket, number, count))
            for leaves in results:
                leaves[position] = output
        remaining = iter(flat[len(self.summed) :])
        for leaves in results:
            for position in plain:
                leaves[position] = next(remaining)
                leaves[position].set_shape(self.specs[position].shape)
        return results

    def _used_of(self, tensors: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return [[leaves[number] for number in self.used] for leaves in tensors]

    def _fetch(self, call: _Call, ticket: Any, number: int, count: int) -> list[Any]:
        """Add an operation to the graph that returns the microbatches of a gradient one by one."""
        # The graph is still being traced, so the first run already keeps them.
        call.one_by_one = True
        spec = self.specs[self.summed[number]]

        def fetch(ticket: Any) -> list[Any]:
            return [as_array(leaves[number]) for leaves in call.kept[int(ticket)]]

        parts = tf.numpy_function(fetch, [ticket], [spec.dtype] * count, stateful=True)
        for part in [parts] if isinstance(parts, tf.Tensor) else parts:
            part.set_shape(spec.shape)
        return [parts] if isinstance(parts, tf.Tensor) else list(parts)

    def collect(self, results: Sequence[Sequence[Any]], make: Callable[[list[Any]], Any]) -> Any:
        """Return the step's result: `make` of each tensor's microbatches, and lists of values that are no tensors."""

        def one(leaf: Any) -> Any:
            if isinstance(leaf, ResultSlot):
                packed = [leaf.packed(leaves) for leaves in results]
                return packed[0] if isinstance(packed[0], SummedOutput) else make(packed)
            # A variable without a gradient has None, as in one process.
            return None if leaf is None else [leaf] * len(results)

        return replace_leaves(self.template, one)


class _Call:
    """A position in a graph where a step is called, with the last gradients that were kept one by one."""

    def __init__(self) -> None:
        self.one_by_one = False
        self.ticket = 0
        self.kept: dict[int, Any] = {}

    def keep(self, gradients: Any) -> None:
        """Keep the gradients of this run until the run after the next one."""
        # TensorFlow may start the next run before it fetches the gradients of this one.
        self.ticket += 1
        self.kept[self.ticket] = gradients
        self.kept.pop(self.ticket - 2, None)


def make_plan(
    rank_state: State, function: Callable[..., Any], part: Any, specs: Sequence[tf.TensorSpec], *, autograph: bool
) -> Plan:
    """Trace the function on arguments like those of one microbatch, and make this rank's plan of it.

    The first plan partitions the model: each variable gets its first value on the rank that holds it.
    """
    result, traced, gradient_of = _traced(rank_state, function, part, specs, autograph=autograph)
    handles = model_handles(rank_state, traced)
    placement = _placement(rank_state, traced, handles)
    nodes = placement.nodes()
    settings, own_rank = rank_state.settings, rank_state.pp_rank
    owners = assign_ranks(nodes, default=settings.default_partition)
    outputs: list[Output] = [(placement.number_of[t.op.name], t.value_index) for t in traced.outputs]
    # A gradient goes to the rank that holds its variable, every other result to all ranks.
    holders = [None if variable is None else placement.owners.get(id(variable.handle)) for variable in gradient_of]
    variables, wanted_by = of_outputs(result, gradient_of), of_outputs(result, holders)
    assert len(variables) == len(outputs)
    if settings.pipeline == "_only_forward" and any(node.backward for node in nodes):
        raise ParallelError("pipeline '_only_forward': the step computes gradients; choose another `pipeline`")
    whole_cut = cut(
        nodes,
        owners,
        settings.partitions,
        lambda rank: [outputs[n] for n in range(len(outputs)) if wanted_by[n] in (None, rank)],
        backward_at_once=settings.pipeline == "interleaved",
    )
    local = [number for number in range(len(outputs)) if wanted_by[number] in (None, own_rank)]
    arguments = [(placement.number_of[t.op.name], t.value_index) for t in traced.graph.inputs[: len(specs)]]
    results = [outputs[number] for number in local]
    cutter = Cutter(traced.graph, nodes, placement.operations, owners, whole_cut)
    segments = whole_cut.segments[own_rank]
    taken = {*results, *(value for segment in segments for value in segment.takes)}
    used = [number for number, value in enumerate(arguments) if value in taken]
    dense = dense_of(result)
    computed = {*whole_cut.arriving(own_rank, results), *(value for segment in segments for value in segment.gives)}
    # The parts of a sparse gradient do not add up. A result that is an argument of the step is computed by no segment.
    summed = [
        position
        for position, number in enumerate(local)
        if variables[number] is not None and number in dense and outputs[number] in computed
    ]
    position_of = {number: position for position, number in enumerate(local)}
    sparse = [
        (position_of[number], position_of[number + 1])
        for number in sparse_of(result)
        if variables[number] is not None and number in position_of
    ]
    # Replicas join their slices, whose numbers may differ.
    open_ended = {position for pair in sparse for position in pair} if rank_state.averages else set()
    return Plan(
        make=functools.partial(cutter.program, own_rank, [arguments[number] for number in used], results),
        results=results,
        used=used,
        template=template_of(result, position_of, [holder not in (None, own_rank) for holder in holders]),
        specs=[
            tf.TensorSpec([None, *output.shape[1:]] if position in open_ended else output.shape, output.dtype)
            for position, output in enumerate(traced.outputs[number] for number in local)
        ],
        handles=[handle for key, handle in handles.items() if rank_state.owners.get(key) == own_rank],
        summed=summed,
        variables=[variables[local[position]] for position in summed],
        sparse=sparse,
    )


def _traced(
    rank_state: State, function: Callable[..., Any], part: Any, specs: Sequence[tf.TensorSpec], *, autograph: bool
) -> tuple[Any, Traced, list[Any]]:
    """Return the result of the step function on placeholders, its graph, and the variable of each gradient."""
    result: list[Any] = []

    def body(*placeholders: Any) -> list[Any]:
        remaining = iter(placeholders)
        args, kwargs = replace_leaves(part, lambda leaf: next(remaining) if is_tensor(leaf) else leaf)
        called = function
        if autograph:
            called = tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())
        result.append(called(*args, **kwargs))
        tensors = [leaf for leaf in leaves_of(result[0]) if is_result(leaf)]
        return tf.nest.flatten(tensors, expand_composites=True)  # type: ignore[no-any-return]

    name = getattr(function, "__name__", "step")
    traced = trace(body, specs, name=name, deferred=rank_state.deferred)
    if rank_state.model is not None:
        refuse_assignments(traced, rank_state.model, rank_state.settings.microbatches)
    trained = [] if rank_state.model is None else [v for v in rank_state.model.all_variables() if v.trainable]
    return result[0], traced, variables_of(result[0], traced, [variable_of(variable) for variable in trained])


def _placement(rank_state: State, traced: Traced, handles: dict[int, Any]) -> Placement:
    """Place the operations of a traced step, and settle the variables that it uses for the first time."""
    settings = rank_state.settings
    automatic = settings.auto_partition and settings.partitions > 1 and rank_state.model is not None
    if automatic and rank_state.assigned is None:
        agree(rank_state, traced)
    partition_of = partition_by_decision(rank_state) if automatic else partition_by_hand(rank_state)
    placement = Placement(traced, partition_of, rank_state.owners, set(handles), settings.default_partition)
    settle(rank_state, placement, handles)
    return placement
