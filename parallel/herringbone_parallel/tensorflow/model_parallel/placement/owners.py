"""Decides which partition owns each variable, and gives variables their first values there.

[1] model_handles             the variables that belong to the model
[2] partition_by_hand         the partition of a layer's operations, from `with smp.partition`
    partition_by_decision     or from the automatic partition
[3] settle                    memory and values: on the owner only
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from herringbone_parallel.tensorflow.model_parallel.placement.placement import PartitionOf, Placement
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Stretch, Traced, release, without_memory
from herringbone_parallel.tensorflow.model_parallel.replicas import start_alike
from herringbone_parallel.tensorflow.model_parallel.state import State


def model_handles(rank_state: State, traced: Traced) -> dict[int, Any]:
    """Return the handles of the model's variables, by their ids."""
    handles = {id(variable.handle): variable.handle for variable in traced.made_in_layers}
    if rank_state.model is not None:
        handles.update({id(variable.handle): variable.handle for variable in rank_state.model.all_variables()})
    return handles


def partition_by_hand(rank_state: State) -> PartitionOf:
    """Return a function from a stretch to its partition, by `with smp.partition` in the step or around a new layer.

    A layer with variables stays on one partition, that of its first call. On a second partition its state would have
    to travel there and back, and microbatches would see it in another order than in one process.
    """
    homes: dict[int, int] = {}

    def partition_of(stretch: Stretch) -> int | None:
        partition = requested(stretch)
        if partition is None or not _has_state(stretch.layer):
            return partition
        owners = (rank_state.owner_of(variable) for variable in stretch.layer.variables)
        # An earlier step may have settled the layer already.
        known = next((owner for owner in owners if owner is not None), partition)
        return homes.setdefault(id(stretch.layer), known)

    def requested(stretch: Stretch) -> int | None:
        if stretch.partition is not None:
            return stretch.partition
        if stretch.layer is rank_state.model:
            return None
        created = rank_state.made_in.get(id(stretch.layer))
        if created is not None:
            return created.partition
        # The operations between the inner layers of a layer run where their data is.
        return None if stretch.layer._layers else rank_state.settings.default_partition

    return partition_of


def partition_by_decision(rank_state: State) -> PartitionOf:
    """Return a function from a stretch to its partition, by the automatic partition.

    A layer whose variables are all on one partition runs there as a whole.
    """
    assigned = rank_state.assigned or {}

    def partition_of(stretch: Stretch) -> int | None:
        if stretch.layer is None:
            return None
        homes = {assigned[id(layer)] for layer in stretch.layer._flatten_layers() if id(layer) in assigned}
        return homes.pop() if len(homes) == 1 else None

    return partition_of


def _has_state(layer: Any) -> bool:
    """Say whether a layer has variables of its own, and not only inner layers with variables."""
    # An RNN wraps its cell in an inner layer, and its loop over the cell is one operation.
    return layer is not None and bool(layer.variables) and (not layer._layers or isinstance(layer, keras.layers.RNN))


def settle(rank_state: State, placement: Placement, handles: dict[int, Any]) -> None:
    """Give new variables their first values on their owner, and free the memory of variables that are elsewhere.

    A layer's other variables follow those that the step uses. Where a step uses none of a layer's variables, they stay
    on every rank until a later step uses one and so shows its owner.
    """
    owners = {**_of_the_same_layers(rank_state, placement.owners), **placement.owners}
    new = {key: handles[key] for key in owners if key in handles and key not in rank_state.settled}
    rank_state.owners.update({key: owners[key] for key in new})
    rank_state.settled.update(new)
    # The trace may run inside the user's `tf.function`; values must be computed now and not become part of its graph.
    with tf.init_scope():
        without_value = {id(deferred.variable.handle) for deferred in rank_state.deferred}
        for variable, initial_value in rank_state.deferred:
            if rank_state.owners.get(id(variable.handle), rank_state.pp_rank) == rank_state.pp_rank:
                variable.assign(initial_value())
        rank_state.deferred.clear()
        if rank_state.model is not None:
            for variable in rank_state.model.all_variables():
                key = id(variable.handle)
                if key in new and rank_state.owners[key] != rank_state.pp_rank and key not in without_value:
                    _free(rank_state, variable)
            _drop_functions(rank_state.model)
        if not rank_state.partitioned and rank_state.model is not None and handles:
            rank_state.partitioned = True
            for hook in rank_state.hooks:
                hook()
        # After the hooks: they may load weights on the first replica only.
        start_alike(rank_state, set(new))


def _of_the_same_layers(rank_state: State, owners: Mapping[int, int]) -> dict[int, int]:
    """Return owners for all variables of those layers whose known variables are on one rank."""
    same_layer: dict[int, int] = {}
    for layer in () if rank_state.model is None else rank_state.model._flatten_layers():
        if _has_state(layer):
            handles = [id(variable.handle) for variable in layer.variables]
            homes = {owners[handle] for handle in handles if handle in owners}
            if len(homes) == 1:
                same_layer.update(dict.fromkeys(handles, homes.pop()))
    return same_layer


def _drop_functions(model: Any) -> None:
    """Make inner models trace their own `predict` and the like again, which weights of other ranks then refuse."""
    for layer in model._flatten_layers(include_self=False):
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)


def _free(rank_state: State, variable: Any) -> None:
    """Free the memory of a Keras variable that had a value before its owner was known."""
    # The replacement has a new handle, and the two dicts find a variable by the id of its handle.
    owner = rank_state.owners.pop(id(variable.handle))
    del rank_state.settled[id(variable.handle)]
    before = variable.value
    variable._value = without_memory(before, variable.shape, before.dtype)
    # A function that the script has traced before over the wrapped model fails, and reads no old values.
    release(before)
    rank_state.owners[id(variable.handle)] = owner
    rank_state.settled[id(variable.handle)] = variable.handle
