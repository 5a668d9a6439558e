"""Names of variables in a checkpoint: the same on every rank, and for any number of partitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.state import SplitModel


@dataclass(frozen=True, slots=True)
class NamedVariable:
    """A variable of this rank with its name in a checkpoint.

    `writer` is the partition that writes a variable which every rank has; None where only this rank has it.
    """

    name: str
    variable: Any
    writer: int | None


def named_variables(objects: Mapping[str, Any], model: SplitModel) -> list[NamedVariable]:
    """Name the variables that this rank holds of the objects in a `tf.train.Checkpoint`.

        named_variables({"model": model, "optimizer": optimizer, "epoch": tf.Variable(0)}, model)

    The name of a model's variable is its number in the whole model and its path. The name of an optimizer's variable
    contains that of the model's variable that it belongs to. Optimizers without variables create them. Raises
    `ParallelError` for an object without variables.
    """
    named: list[NamedVariable] = []
    rank_state = state.get()
    for key, value in objects.items():
        if value is model:
            # A variable that no step has used yet has no owner, and every rank has it.
            named += [
                NamedVariable(f"{key}/{name}", variable, 0 if rank_state.owner_of(variable) is None else None)
                for name, variable in _own_of(model)
            ]
        elif isinstance(value, keras.optimizers.Optimizer):
            named += _of_optimizer(key, value, model)
        elif isinstance(value, tf.Variable | keras.Variable):
            named.append(NamedVariable(key, value, 0))
        elif isinstance(value, keras.layers.Layer | keras.metrics.Metric):
            named += [NamedVariable(f"{key}/{number}:{v.path}", v, 0) for number, v in enumerate(value.variables)]
        else:
            raise ParallelError(
                f"the checkpoint's {key!r} is a {type(value).__qualname__}: smp.CheckpointManager keeps models,"
                " optimizers, metrics and variables. Keep its state in a tf.Variable, and give that"
            )
    repeated = [name for name, count in Counter(variable.name for variable in named).items() if count > 1]
    assert not repeated, repeated
    return named


def _own_of(model: SplitModel) -> Iterator[tuple[str, Any]]:
    # The number is that in the whole model, so it does not depend on the partition. Paths alone may repeat.
    local_ids = {id(variable) for variable in model.variables}
    for number, variable in enumerate(model.all_variables()):
        if id(variable) in local_ids:
            yield f"{number}:{variable.path}", variable


def _of_optimizer(key: str, optimizer: Any, model: SplitModel) -> list[NamedVariable]:
    if not optimizer.built and model.trainable_variables:
        optimizer.build(model.trainable_variables)
    # Keras names Adam's momentum of `dense/kernel` `dense_kernel_momentum`. For two variables with the same path, it
    # creates the momentum of the first one first.
    owners: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
    for name, variable in _own_of(model):
        owners[variable.path.replace("/", "_")].append((name, variable))
    # Only a partition with trainable variables counts the optimizer's steps, so such a partition writes the count.
    rank_state = state.get()
    writer = min(
        (rank_state.owner_of(variable) or 0 for variable in model.all_variables() if variable.trainable), default=0
    )
    seen: Counter[str] = Counter()
    named = []
    for variable in optimizer.variables:
        group, _, last = variable.path.rpartition("/")
        # The longest match: the name of one variable may begin with the name of another.
        owner = max((path for path in owners if last.startswith(f"{path}_")), key=len, default=None)
        if owner is None:
            named.append(NamedVariable(f"{key}/{group}/{last}", variable, writer))
            continue
        name, _ = _nth(owners[owner], seen[variable.path])
        seen[variable.path] += 1
        named.append(NamedVariable(f"{key}/{group}/{last.removeprefix(f'{owner}_')}/{name}", variable, None))
    return named


def _nth(owners: Sequence[tuple[str, Any]], number: int) -> tuple[str, Any]:
    assert number < len(owners), "an optimizer keeps more than there are variables of that path"
    return owners[number]
