"""The parts of a training in TensorFlow, each with its arrays and values for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from herringbone_contract.errors import ParallelError
from herringbone_parallel.position.parts import (
    Array,
    Attributes,
    Fresh,
    Kept,
    Part,
    Place,
    Random,
    Variable,
    Variables,
)
from herringbone_parallel.position.random_numbers import set_python
from herringbone_parallel.tensorflow.position.samples import Samples

_PIPELINES = "herringbone_parallel.tensorflow.model_parallel"
SEED = "seed_generator_state"


def part_of(name: str, value: Any, build: Callable[[], None]) -> Part:
    """Return the part of an object; `build` makes the variables that its first step would make.

    Raises `ParallelError` for an object that cannot be saved.
    """
    if any(base.__module__.startswith(_PIPELINES) for base in type(value).__mro__):
        raise ParallelError(
            f"the part {name!r} is divided among the ranks of a pipeline: save it by smp.CheckpointManager, which keeps"
            " no place in the data"
        )
    if isinstance(value, Samples):
        return Place(value.order)
    if isinstance(value, keras.callbacks.Callback):
        # Keras sets them, and the last two again from the first metrics.
        return Attributes(name, value, ("params", "_model", "monitor_op", "min_delta"))
    if isinstance(value, tf.data.Iterator):
        return Iterator(name, value)
    if isinstance(value, keras.Model):
        return TensorFlowVariables(name, lambda: value.variables, build, lambda: value.trainable_variables)
    if isinstance(value, keras.optimizers.Optimizer):
        return TensorFlowVariables(name, lambda: value.variables, build, lambda: value.variables)
    if isinstance(value, (tf.Variable, keras.Variable)):
        return TensorFlowVariables(name, lambda: [value], build)
    if isinstance(value, (tf.random.Generator, keras.random.SeedGenerator)):
        return TensorFlowVariables(name, lambda: [value.state], build)
    if isinstance(value, (keras.layers.Layer, keras.metrics.Metric, tf.Module)):
        return TensorFlowVariables(name, lambda: value.variables, build)
    kind = type(value).__qualname__
    if isinstance(value, tf.data.Dataset):
        raise ParallelError(
            f"the part {name!r} is a {kind}, which begins at its first element: give Samples(...), or in a loop of your"
            " own the iterator, iter(dataset.repeat(epochs))"
        )
    raise ParallelError(
        f"the part {name!r} is a {kind}: a part is a model, an optimizer, Samples, a callback, an iterator of tf.data,"
        " a generator of random numbers, a metric, a tf.Module or a variable"
    )


class TensorFlowVariables(Variables):
    """Variables of TensorFlow or Keras; those in `shared` are equal on all ranks."""

    def __init__(
        self,
        name: str,
        variables: Callable[[], Sequence[Any]],
        build: Callable[[], None],
        shared: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        super().__init__(name, lambda: _described(variables(), {id(one) for one in shared()}), build)

    def reseed(self, numbers: Fresh) -> None:
        for count, variable in enumerate(self._variables()):
            if variable.name.endswith(SEED):
                # A layer's own number, because they may have been made with one seed.
                variable.assign([int(numbers(1)[0] + count) % 2**31, 0])


class Iterator(Part):
    """An iterator of tf.data, with what it has shuffled and fetched ahead."""

    def __init__(self, name: str, iterator: Any) -> None:
        self._name, self._iterator = name, iterator
        self.own()

    def own(self) -> dict[str, Array]:
        try:
            state = tf.raw_ops.SerializeIterator(
                resource_handle=self._iterator._iterator_resource, external_state_policy=2
            )
        except (tf.errors.OpError, AttributeError) as error:
            raise ParallelError(
                f"the iterator {self._name!r} has no place that TensorFlow can write: {str(error)[:300]}. Give"
                " Samples(...), or a dataset without from_generator, py_function and random numbers in its functions"
            ) from error
        return {"iterator": np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)}

    def put(self, kept: Kept) -> None:
        state = tf.io.parse_tensor(kept.arrays["iterator"].tobytes(), tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=self._iterator._iterator_resource, serialized=state)

    def reseed(self, numbers: Fresh) -> None:  # noqa: ARG002 - there is no such place
        raise ParallelError(
            f"the iterator {self._name!r} has its place on the number of ranks that wrote it only: give Samples(...),"
            " which goes on on any"
        )


class AllRandom(Random):
    """Python's and NumPy's numbers, those of TensorFlow's eager operations, and the generators of TensorFlow and Keras.

    A random operation inside a `tf.function` counts its calls where nobody can read it.
    """

    def values(self) -> Any:
        eager = getattr(context.context(), "_rng", None)
        kept = {name: None if one is None else one.state.numpy().tolist() for name, one in generators().items()}
        return {**super().values(), **kept, "eager": eager and eager.getstate()}

    def put(self, kept: Kept) -> None:
        super().put(kept)
        values = kept.values
        if values["tensorflow"] is not None:
            tf.random.get_global_generator()
        if values["keras"] is not None:
            keras.src.random.seed_generator.global_seed_generator()
        for name, one in generators().items():
            if values[name] is not None:
                one.state.assign(values[name])
        if values["eager"] is not None and (eager := getattr(context.context(), "_rng", None)) is not None:
            set_python(eager, values["eager"])

    def reseed(self, numbers: Fresh) -> None:
        super().reseed(numbers)
        first, second, third, *_ = numbers(8) % 2**31
        tf.random.set_seed(int(first))
        own = generators()
        if own["tensorflow"] is not None:
            own["tensorflow"].reset_from_seed(int(second))
        if own["keras"] is not None:
            own["keras"].state.assign([int(third), 0])


def generators() -> dict[str, Any]:
    """Return the generators of TensorFlow and Keras, None where there is none yet."""
    return {
        "tensorflow": stateful_random_ops.global_generator,
        "keras": global_state.get_global_attribute("global_seed_generator"),
    }


def _described(variables: Sequence[Any], shared: set[int]) -> list[Variable]:
    return [
        Variable(
            str(getattr(one, "path", one.name)),
            one.shape,
            tf.as_dtype(one.dtype).name,
            id(one) in shared,
            one.numpy,
            one.assign,
        )
        for one in variables
    ]
