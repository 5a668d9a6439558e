"""How the ranks come to one partition: each decides on the same graph, or the first one loads it from a file.

partition_file      the first rank writes what was decided, and what that costs
load_partition      it reads the file instead, for the same split as last time, and tells the others
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_contract.partition_file import parse, to_text
from herringbone_parallel.core.groups import WORLD
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.record import record
from herringbone_parallel.core.partition.work import CPU, CUDA
from herringbone_parallel.tensorflow.model_parallel.communication import allgather
from herringbone_parallel.tensorflow.model_parallel.placement.measure import layers_of, measure, own_variables

if TYPE_CHECKING:
    from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced
    from herringbone_parallel.tensorflow.model_parallel.state import State

# What a step loses, as a fraction, when microbatches come back to a rank: what torch's pipeline was simulated to lose.
_REVISIT_COST = {"simple": 0.03, "_only_forward": 0.03}
_REVISIT_COST_OF_ONE_BY_ONE = 0.1
# With `contiguous` a split that comes back to a partition is taken only if there is no other.
_NEVER = 1e9


def agree(here: State, traced: Traced) -> None:
    """Decide on which partition each layer of the model is, on the first step's graph; all ranks come to the same.

    Sets the owners of the model's variables. Raises `ParallelError` for a model with fewer layers that can be told
    apart than partitions, and for a file that is of another model.
    """
    assert here.model is not None
    layers = layers_of(here.model)
    settings = here.settings
    file = settings.partition_file
    if settings.load_partition:
        assert file is not None, "the grammar asks for both"
        assigned = _loaded(here, Path(file), list(layers))
    else:
        live = settings.microbatches
        if settings.pipeline != "simple":
            live = min(settings.active_microbatches, live)
        device = CUDA if tf.config.list_physical_devices("GPU") else CPU
        tree = measure(traced, layers, device, live)
        cost = _REVISIT_COST.get(settings.pipeline, _REVISIT_COST_OF_ONE_BY_ONE)
        decision = decide(
            tree,
            settings.partitions,
            memory_weight=settings.memory_weight,
            revisit_cost=_NEVER if settings.contiguous else cost,
        )
        assigned = decision.assigned
        if file is not None and here.rank == 0:
            _write(Path(file), to_text(record(tree, decision)))
    here.assigned = {id(layers[path]): partition for path, partition in assigned.items()}
    for path, partition in assigned.items():
        for variable in own_variables(layers[path]):
            here.owners.setdefault(id(variable.handle), partition)


def _loaded(here: State, path: Path, paths: list[str]) -> dict[str, int]:
    """Read the file on the first rank, and tell the others what it says or why it cannot be used."""
    found: dict[str, int] | str = {}
    if here.rank == 0:
        try:
            file = parse(path.read_bytes())
            file.check(paths, here.settings.partitions)
            found = file.assigned
        except OSError as error:
            found = (
                f"the partition file {str(path)!r} cannot be read: {error.strerror}. Run once without `load_partition`"
                " to write it, and make it reachable from the first host."
            )
        except ParallelError as error:
            found = f"{path}: {error}"
    if here.transport is not None:
        found = allgather(found, WORLD)[0]
    if isinstance(found, str):
        raise ParallelError(found)
    return found


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all; folders on the way are made. Raises `ParallelError` when it cannot."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise ParallelError(
            f"the partition file {str(path)!r} cannot be written: {error.strerror}. Name a path that the first rank can"
            " write to, or unset `partition_file`."
        ) from error
