"""Agrees on one automatic partition: every rank decides on the same graph, or the first rank loads a file.

partition_file      the first rank writes the partition and its costs
load_partition      the first rank reads the file instead, for the same split as last time, and sends it to the others
"""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel import partition_file
from herringbone_parallel.core.groups import WORLD
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.record import record
from herringbone_parallel.core.partition.work import CPU, CUDA
from herringbone_parallel.tensorflow.model_parallel.communication import allgather
from herringbone_parallel.tensorflow.model_parallel.placement.measure import layers_of, measure, own_variables
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced
from herringbone_parallel.tensorflow.model_parallel.state import State

# The fraction of a step that is lost when microbatches come back to a rank. Simulations of torch's pipeline gave it.
_REVISIT_COST = {"simple": 0.03, "_only_forward": 0.03}
_REVISIT_COST_OF_ONE_BY_ONE = 0.1
# With `contiguous`, a split that comes back to a partition is taken only if there is no other.
_NEVER = 1e9


def agree(rank_state: State, traced: Traced) -> None:
    """Decide on the partition of each layer from the first step's graph; all ranks come to the same partition.

    Sets the owners of the model's variables. Raises `ParallelError` for a model with fewer separable layers than
    partitions, and for a partition file of another model.
    """
    assert rank_state.model is not None
    layers = layers_of(rank_state.model)
    settings = rank_state.settings
    file = settings.partition_file
    if settings.load_partition:
        assert file is not None, "the grammar asks for both"
        assigned = _loaded(rank_state, Path(file), list(layers))
    else:
        live = settings.microbatches
        if settings.pipeline != "simple":
            live = min(settings.active_microbatches, live)
        device = CUDA if tf.config.list_physical_devices("GPU") else CPU
        tree = measure(traced, layers, device, live)
        revisit_cost = _REVISIT_COST.get(settings.pipeline, _REVISIT_COST_OF_ONE_BY_ONE)
        # Neither the measurement nor the search depends on time, so every rank comes to the same decision alone.
        decision = decide(
            tree,
            settings.partitions,
            memory_weight=settings.memory_weight,
            revisit_cost=_NEVER if settings.contiguous else revisit_cost,
        )
        assigned = decision.assigned
        if file is not None and rank_state.rank == 0:
            partition_file.write(Path(file), record(tree, decision))
    rank_state.assigned = {id(layers[path]): partition for path, partition in assigned.items()}
    for path, partition in assigned.items():
        for variable in own_variables(layers[path]):
            rank_state.owners.setdefault(id(variable.handle), partition)


def _loaded(rank_state: State, path: Path, paths: list[str]) -> dict[str, int]:
    """Read the file on the first rank; send the others its content, or the reason why it cannot be used."""
    # A string is an error message. It travels like the content, so that every rank raises and none waits.
    assigned: dict[str, int] | str = {}
    if rank_state.rank == 0:
        try:
            assigned = partition_file.load(path, paths, rank_state.settings.partitions)
        except ParallelError as error:
            assigned = str(error)
    if rank_state.transport is not None:
        assigned = allgather(assigned, WORLD)[0]
    if isinstance(assigned, str):
        raise ParallelError(assigned)
    return assigned
