"""What a checkpoint calls the variables of a job: the same on every rank, and for any number of partitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.model import DistributedModel


@dataclass(frozen=True, slots=True)
class Named:
    """A variable of this rank under its name; one on every rank is written by the partition `speaker`."""

    name: str
    variable: Any
    speaker: int | None


def named_variables(objects: Mapping[str, Any], model: DistributedModel) -> list[Named]:
    """Name what this rank holds of the objects in a `tf.train.Checkpoint`.

        named_variables({"model": model, "optimizer": optimizer, "epoch": tf.Variable(0)}, model)

    A variable of the model is known by its place in the whole model and its path, one of an optimizer by that of the
    variable that it belongs to. Optimizers that have made no variables yet make them. Raises `ParallelError` for an
    object without variables.
    """
    found: list[Named] = []
    for key, value in objects.items():
        if value is model:
            # What no step has used yet is on every rank.
            here = state.get()
            found += [Named(f"{key}/{name}", v, 0 if here.owner_of(v) is None else None) for name, v in _own_of(model)]
        elif isinstance(value, keras.optimizers.Optimizer):
            found += _of_optimizer(key, value, model)
        elif isinstance(value, tf.Variable | keras.Variable):
            found.append(Named(key, value, 0))
        elif isinstance(value, keras.layers.Layer | keras.metrics.Metric):
            found += [Named(f"{key}/{place}:{v.path}", v, 0) for place, v in enumerate(value.variables)]
        else:
            raise ParallelError(
                f"the checkpoint's {key!r} is a {type(value).__qualname__}: smp.CheckpointManager keeps models,"
                " optimizers, metrics and variables. Keep its state in a tf.Variable, and give that"
            )
    repeated = [name for name, count in Counter(named.name for named in found).items() if count > 1]
    assert not repeated, repeated
    return found


def _own_of(model: DistributedModel) -> Iterator[tuple[str, Any]]:
    own = {id(variable) for variable in model.variables}
    for place, variable in enumerate(model.all_variables()):
        if id(variable) in own:
            yield f"{place}:{variable.path}", variable


def _of_optimizer(key: str, optimizer: Any, model: DistributedModel) -> list[Named]:
    if not optimizer.built and model.trainable_variables:
        optimizer.build(model.trainable_variables)
    # Keras calls what it keeps for `dense/kernel` in Adam `dense_kernel_momentum`; of two variables with one path, it
    # makes that of the first one first.
    owners: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
    for name, variable in _own_of(model):
        owners[variable.path.replace("/", "_")].append((name, variable))
    # A partition that has nothing to apply does not count its steps.
    here = state.get()
    speaker = min((here.owner_of(variable) or 0 for variable in model.all_variables() if variable.trainable), default=0)
    seen: Counter[str] = Counter()
    found = []
    for variable in optimizer.variables:
        group, _, last = variable.path.rpartition("/")
        owner = max((path for path in owners if last.startswith(f"{path}_")), key=len, default=None)
        if owner is None:
            found.append(Named(f"{key}/{group}/{last}", variable, speaker))
            continue
        name, _ = _nth(owners[owner], seen[variable.path])
        seen[variable.path] += 1
        found.append(Named(f"{key}/{group}/{last.removeprefix(f'{owner}_')}/{name}", variable, None))
    return found


def _nth(owners: Sequence[tuple[str, Any]], number: int) -> tuple[str, Any]:
    assert number < len(owners), "an optimizer keeps more than there are variables of that path"
    return owners[number]
