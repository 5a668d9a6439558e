"""From a step function and the shapes of a microbatch to this rank's program: trace, place, cut."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import Output, assign_ranks, cut
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array
from herringbone_parallel.tensorflow.model_parallel.output import SummedOutput
from herringbone_parallel.tensorflow.model_parallel.placement.partitioning import agree
from herringbone_parallel.tensorflow.model_parallel.placement.placement import Placement
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Stretch, Traced, trace, without_memory
from herringbone_parallel.tensorflow.model_parallel.replicas import start_alike
from herringbone_parallel.tensorflow.model_parallel.results import Place, dense_of, is_result, template_of, variables_of
from herringbone_parallel.tensorflow.model_parallel.runtime.cut import Cutter, Program
from herringbone_parallel.tensorflow.model_parallel.split import is_tensor

if TYPE_CHECKING:
    from herringbone_parallel.tensorflow.model_parallel.runtime.pipeline import Run
    from herringbone_parallel.tensorflow.model_parallel.state import State


@dataclass
class Plan:
    """What this rank does when the step is called with arguments of certain shapes.

    `template` is the step's result with a `Place` in the place of each tensor that this rank gets.
    """

    # Makes a program that adds up these values over so many microbatches.
    make: Callable[[Collection[Output], int], Program]
    results: list[Output]
    # The places of the arguments that this rank uses.
    used: list[int]
    template: Any
    specs: list[tf.TensorSpec]
    # This rank's variables, which the step reads and may change.
    handles: list[Any]
    # The places, among the results, of gradients that can be added up as they come, and whose gradients they are.
    summed: list[int]
    variables: list[Any]
    # How often it has begun.
    runs: int = 0
    _programs: dict[int, Program] = field(default_factory=dict)

    def program(self, adds: int) -> Program:
        """Return the program, which adds up gradients over so many microbatches or, with 0, returns them one by one."""
        if adds not in self._programs:
            self._programs[adds] = self.make([self.results[spot] for spot in self.summed] if adds else (), adds)
        return self._programs[adds]

    def at_once(self, run: Run, given: Sequence[Sequence[Any]], *, summed: bool) -> list[list[Any]]:
        """Run the pipeline, outside of a graph; return the results of each microbatch.

        With `summed` those of gradients are all the same `SummedOutput`.
        """
        spots = self.summed if summed else []
        results = run.run(self._used_of(given), [self.results[spot] for spot in spots])
        for spot in spots:
            parts = [leaves[spot] for leaves in results]
            total = tf.convert_to_tensor(run.sums[self.results[spot]])
            output = SummedOutput(total, len(given), functools.partial(list, parts))
            for leaves in results:
                leaves[spot] = output
        return results

    def in_graph(self, make_run: Callable[..., Run], given: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Add a call of the pipeline to the graph that is being traced; return the results of each microbatch.

        Those of gradients are all the same `SummedOutput`.
        """
        width, count = len(self.used), len(given)
        plain = [spot for spot in range(len(self.specs)) if spot not in self.summed]
        call = _Call()

        def run_flat(*flat: Any) -> list[Any]:
            run = make_run(adds=0 if call.one_by_one else count)
            parts = [flat[number * width : (number + 1) * width] for number in range(count)]
            results = run.run(parts, [self.results[spot] for spot in self.summed])
            if call.one_by_one:
                call.keep([[leaves[spot] for spot in self.summed] for leaves in results])
                results = [[leaves[spot] for spot in plain] for leaves in results]
            sums = [run.sums[self.results[spot]] for spot in self.summed]
            return [np.int64(call.ticket), *sums, *(as_array(tensor) for leaves in results for tensor in leaves)]

        types = [tf.int64, *(self.specs[spot].dtype for spot in self.summed)]
        types += [self.specs[spot].dtype for spot in plain] * count

        def step(*flat: Any) -> Any:
            # TensorFlow runs what touches a variable in the order of the program: it must know which this touches.
            touched = [tf.identity(tf.compat.v1.get_default_graph().capture(handle)) for handle in self.handles]
            with tf.control_dependencies(touched):
                return tf.numpy_function(run_flat, list(flat), types, stateful=True)

        returned = tf.function(step, autograph=False)(*[tensor for leaves in self._used_of(given) for tensor in leaves])
        ticket, *flat = [returned] if isinstance(returned, tf.Tensor) else returned
        found: list[list[Any]] = [[None] * len(self.specs) for _ in range(count)]
        for number, spot in enumerate(self.summed):
            flat[number].set_shape(self.specs[spot].shape)
            output = SummedOutput(flat[number], count, functools.partial(self._fetch, call, ticket, number, count))
            for leaves in found:
                leaves[spot] = output
        waiting = iter(flat[len(self.summed) :])
        for leaves in found:
            for spot in plain:
                leaves[spot] = next(waiting)
                leaves[spot].set_shape(self.specs[spot].shape)
        return found

    def _used_of(self, given: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return [[leaves[number] for number in self.used] for leaves in given]

    def _fetch(self, call: _Call, ticket: Any, number: int, count: int) -> list[Any]:
        """Add to the graph what returns the microbatches of a gradient one by one."""
        call.one_by_one = True
        spec = self.specs[self.summed[number]]

        def fetch(ticket: Any) -> list[Any]:
            return [as_array(leaves[number]) for leaves in call.kept[int(ticket)]]

        parts = tf.numpy_function(fetch, [ticket], [spec.dtype] * count, stateful=True)
        for part in [parts] if isinstance(parts, tf.Tensor) else parts:
            part.set_shape(spec.shape)
        return [parts] if isinstance(parts, tf.Tensor) else list(parts)

    def collect(self, results: Sequence[Sequence[Any]], make: Callable[[list[Any]], Any]) -> Any:
        """Return the step's result, with `make` of each tensor's microbatches, and lists of what is no tensor."""

        def one(leaf: Any) -> Any:
            if isinstance(leaf, Place):
                packed = [leaf.packed(leaves) for leaves in results]
                return packed[0] if isinstance(packed[0], SummedOutput) else make(packed)
            return [leaf] * len(results)

        return replace_leaves(self.template, one)


class _Call:
    """A place in a graph where a step is called: whether it must keep gradients one by one, and the last ones."""

    def __init__(self) -> None:
        self.one_by_one = False
        self.ticket = 0
        self.kept: dict[int, Any] = {}

    def keep(self, gradients: Any) -> None:
        """Keep the gradients of this run until the next but one."""
        self.ticket += 1
        self.kept[self.ticket] = gradients
        self.kept.pop(self.ticket - 2, None)


def make_plan(
    here: State, function: Callable[..., Any], part: Any, specs: Sequence[tf.TensorSpec], *, autograph: bool
) -> Plan:
    """Trace the function on arguments like those of one microbatch, and make this rank's plan of it.

    In the first one the model is partitioned: each variable gets its first value on the rank that holds it.
    """
    result: list[Any] = []

    def body(*placeholders: Any) -> list[Any]:
        waiting = iter(placeholders)
        args, kwargs = replace_leaves(part, lambda leaf: next(waiting) if is_tensor(leaf) else leaf)
        called = function
        if autograph:
            called = tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())
        result.append(called(*args, **kwargs))
        tensors = [leaf for leaf in leaves_of(result[0]) if is_result(leaf)]
        return tf.nest.flatten(tensors, expand_composites=True)  # type: ignore[no-any-return]

    name = getattr(function, "__name__", "step")
    traced = trace(body, specs, name=name, deferred=here.deferred, densify=here.averages)
    members = _members(here, traced)
    automatic = here.settings.auto_partition and here.settings.partitions > 1 and here.model is not None
    if automatic and here.assigned is None:
        agree(here, traced)
    told = _told_by_decision(here) if automatic else _told_by_hand(here)
    placement = Placement(traced, told, here.owners, set(members), here.settings.default_partition)
    _settle(here, placement, members)
    nodes = placement.nodes()
    owners = assign_ranks(nodes, default=here.settings.default_partition)
    outputs: list[Output] = [(placement.number_of[t.op.name], t.value_index) for t in traced.outputs]
    variables = variables_of(result[0], traced)
    assert len(variables) == len(outputs)
    # A gradient is for who holds its variable, all else for all.
    wanted = [None if variable is None else placement.owners.get(id(variable.handle)) for variable in variables]
    if here.settings.pipeline == "_only_forward" and any(node.backward for node in nodes):
        raise ParallelError("pipeline '_only_forward': the step computes gradients; choose another `pipeline`")
    ranks = here.settings.partitions
    made = cut(
        nodes,
        owners,
        ranks,
        lambda rank: [outputs[n] for n in range(len(outputs)) if wanted[n] in (None, rank)],
        backward_at_once=here.settings.pipeline == "interleaved",
    )
    local = [number for number in range(len(outputs)) if wanted[number] in (None, here.pp_rank)]
    arguments = [(placement.number_of[t.op.name], t.value_index) for t in traced.graph.inputs[: len(specs)]]
    results = [outputs[number] for number in local]
    cutter = Cutter(traced.graph, nodes, placement.operations, owners, made)
    here_made = made.segments[here.pp_rank]
    taken = {*results, *(value for segment in here_made for value in segment.takes)}
    used = [number for number, value in enumerate(arguments) if value in taken]
    make = functools.partial(cutter.program, here.pp_rank, [arguments[number] for number in used], results)
    dense = dense_of(result[0])
    template = template_of(result[0], {number: place for place, number in enumerate(local)})
    shapes = [tf.TensorSpec(traced.outputs[number].shape, traced.outputs[number].dtype) for number in local]
    own = [handle for key, handle in members.items() if here.owners.get(key) == here.pp_rank]
    coming = {*made.arriving(here.pp_rank, results), *(value for segment in here_made for value in segment.gives)}
    summed = [
        place
        for place, number in enumerate(local)
        if variables[number] is not None and number in dense and outputs[number] in coming
    ]
    return Plan(make, results, used, template, shapes, own, summed, [variables[local[place]] for place in summed])


def _members(here: State, traced: Traced) -> dict[int, Any]:
    """Return the handles of the model's variables, by their ids."""
    found = {id(variable.handle): variable.handle for variable in traced.made_in_layers}
    if here.model is not None:
        found.update({id(variable.handle): variable.handle for variable in here.model.all_variables()})
    return found


def _told_by_hand(here: State) -> Callable[[Stretch], int | None]:
    """Say where stretches go by `with smp.partition`, in a step or where a layer was made.

    A layer with variables is on one partition, that of its first call: were it called on a second one, its state would
    travel there and back, and microbatches would see it in another order than in one process.
    """
    homes: dict[int, int] = {}

    def told(stretch: Stretch) -> int | None:
        partition = said(stretch)
        if partition is None or not _has_state(stretch.layer):
            return partition
        settled = (here.owner_of(variable) for variable in stretch.layer.variables)
        known = next((owner for owner in settled if owner is not None), partition)
        return homes.setdefault(id(stretch.layer), known)

    def said(stretch: Stretch) -> int | None:
        if stretch.partition is not None:
            return stretch.partition
        if stretch.layer is here.model:
            return None
        made = here.made_in.get(id(stretch.layer))
        if made is not None:
            return made[1]
        # The operations between the layers of a layer run where their data is.
        return None if stretch.layer._layers else here.settings.default_partition

    return told


def _has_state(layer: Any) -> bool:
    """Say whether a layer has variables of its own, not just layers that have some."""
    return layer is not None and bool(layer.variables) and (not layer._layers or isinstance(layer, keras.layers.RNN))


def _told_by_decision(here: State) -> Callable[[Stretch], int | None]:
    """Say where stretches go by the automatic partition: a layer whose variables are all on one is there, whole."""
    assigned = here.assigned or {}

    def told(stretch: Stretch) -> int | None:
        if stretch.layer is None:
            return None
        homes = {assigned[id(layer)] for layer in stretch.layer._flatten_layers() if id(layer) in assigned}
        return homes.pop() if len(homes) == 1 else None

    return told


def _settle(here: State, placement: Placement, members: dict[int, Any]) -> None:
    """Give new variables their first values where they belong, and take the memory of those that are elsewhere.

    A layer's other variables go with those that the step uses. Where it uses none, they stay on every rank until a step
    does: which is theirs is known then.
    """
    owners = {**_of_the_same_layers(here, placement.owners), **placement.owners}
    new = {key: members[key] for key in owners if key in members and key not in here.settled}
    here.owners.update({key: owners[key] for key in new})
    here.settled.update(new)
    with tf.init_scope():
        waiting = {id(variable.handle) for variable, _ in here.deferred}
        for variable, initial in here.deferred:
            if here.owners.get(id(variable.handle), here.pp_rank) == here.pp_rank:
                variable.assign(initial())
        here.deferred.clear()
        if here.model is not None:
            for variable in here.model.all_variables():
                key = id(variable.handle)
                if key in new and here.owners[key] != here.pp_rank and key not in waiting:
                    _free(here, variable)
        if not here.partitioned and here.model is not None and members:
            here.partitioned = True
            for hook in here.hooks:
                hook()
        start_alike(here, set(new))


def _of_the_same_layers(here: State, owners: Mapping[int, int]) -> dict[int, int]:
    """Return the owners of variables of layers that have others which are owned, all by the same rank."""
    found: dict[int, int] = {}
    for layer in () if here.model is None else here.model._flatten_layers():
        if _has_state(layer):
            handles = [id(variable.handle) for variable in layer.variables]
            homes = {owners[handle] for handle in handles if handle in owners}
            if len(homes) == 1:
                found.update(dict.fromkeys(handles, homes.pop()))
    return found


def _free(here: State, variable: Any) -> None:
    """Take the memory of a Keras variable that had a value before it was known to be elsewhere."""
    owner = here.owners.pop(id(variable.handle))
    del here.settled[id(variable.handle)]
    variable._value = without_memory(variable.value, variable.shape, variable.value.dtype)
    here.owners[id(variable.handle)] = owner
    here.settled[id(variable.handle)] = variable.handle
