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
from herringbone_parallel.position.samples import Order
from herringbone_parallel.position.training import Array, Kept, Part, Random, plain, unplain
from herringbone_parallel.tensorflow.position.samples import Samples

_PIPELINES = "herringbone_parallel.tensorflow.model_parallel"
_SEED = "seed_generator_state"


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
        return Attributes(name, value)
    if isinstance(value, keras.Model):
        return Variables(name, lambda: value.variables, lambda: _ids(value.trainable_variables), build)
    if isinstance(value, keras.optimizers.Optimizer):
        return Variables(name, lambda: value.variables, lambda: _ids(value.variables), build)
    if isinstance(value, (tf.Variable, keras.Variable)):
        return Variables(name, lambda: [value], set, build)
    if isinstance(value, (tf.random.Generator, keras.random.SeedGenerator)):
        return Variables(name, lambda: [value.state], set, build)
    if isinstance(value, (keras.layers.Layer, keras.metrics.Metric, tf.Module)):
        return Variables(name, lambda: value.variables, set, build)
    if isinstance(value, tf.data.Iterator):
        return Iterator(name, value)
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


class Variables(Part):
    """Variables in an order that does not change; those in `shared` are equal on all ranks."""

    def __init__(
        self,
        name: str,
        variables: Callable[[], Sequence[Any]],
        shared: Callable[[], set[int]],
        build: Callable[[], None],
    ) -> None:
        self._name, self._variables, self._shared, self._build = name, variables, shared, build

    def arrays(self) -> dict[str, Array]:
        return self._values(True)

    def own(self) -> dict[str, Array]:
        return self._values(False)

    def put(self, kept: Kept) -> None:
        saved = [value for _, value in sorted(kept.arrays.items(), key=lambda item: int(item[0].split(":")[0]))]
        if len(self._variables()) != len(saved):
            self._build()
        variables = self._variables()
        shapes = [(tuple(value.shape), value.dtype.name) for value in saved]
        here = [(tuple(variable.shape), tf.as_dtype(variable.dtype).name) for variable in variables]
        if shapes != here:
            differs = next((pair for pair in zip(shapes, here, strict=False) if pair[0] != pair[1]), "no others")
            raise ParallelError(
                f"the checkpoint's part {self._name!r} has {len(shapes)} variables, and {len(here)} here; first"
                f" difference: {differs}. Make the same model, optimizer and metrics"
            )
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    def reseed(self, numbers: Callable[[int], Array]) -> None:
        for number, variable in enumerate(self._variables()):
            if _path(variable).endswith(_SEED):
                variable.assign(tf.cast(numbers(8)[number % 8 : number % 8 + 1].repeat(2) % 2**31, variable.dtype))

    def _values(self, is_shared: bool) -> dict[str, Array]:
        shared = self._shared()
        return {
            f"{number}:{_path(variable)}": np.asarray(variable.numpy())
            for number, variable in enumerate(self._variables())
            if (id(variable) in shared) == is_shared
        }


class Place(Part):
    """The place in the order of samples."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def values(self) -> Any:
        return self._order.take()

    def put(self, kept: Kept) -> None:
        self._order.put(kept.values)


class Attributes(Part):
    """Numbers, texts and arrays that a callback changes of itself during the training."""

    def __init__(self, name: str, callback: Any) -> None:
        self._name, self._callback = name, callback
        self._first = self._present()

    def values(self) -> Any:
        # What the script sets and the training does not change is the script's.
        changed = {name: value for name, value in self._present().items() if value != self._first.get(name)}
        if lost := [name for name, value in changed.items() if isinstance(value, type)]:
            raise ParallelError(
                f"the callback {self._name!r} keeps a {changed[lost[0]].__qualname__} in {lost[0]!r}, which no"
                " checkpoint has: a callback that is a part keeps numbers, texts and arrays. Leave the part out if it"
                " begins anew"
            )
        return changed

    def put(self, kept: Kept) -> None:
        for name, value in kept.values.items():
            setattr(self._callback, name, unplain(value))

    def _present(self) -> dict[str, Any]:
        kept = {}
        for name, value in vars(self._callback).items():
            # Keras sets them, and the second two again from the first metrics.
            if name not in ("params", "_model", "monitor_op", "min_delta"):
                try:
                    kept[name] = plain(value)
                except TypeError:
                    kept[name] = type(value)
        return kept


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

    def reseed(self, numbers: Callable[[int], Array]) -> None:  # noqa: ARG002 - there is no such place
        raise ParallelError(
            f"the iterator {self._name!r} has its place on the number of ranks that wrote it only: give Samples(...),"
            " which goes on on any"
        )


class AllRandom(Random):
    """Python's and NumPy's numbers, those of TensorFlow's eager operations, and the generators of TensorFlow and Keras.

    A random operation inside a `tf.function` counts its calls where nobody can read it.
    """

    def values(self) -> Any:
        eager = context.context()._rng
        kept = {name: None if one is None else one.state.numpy().tolist() for name, one in _generators().items()}
        return {**super().values(), **kept, "eager": eager and eager.getstate()}

    def put(self, kept: Kept) -> None:
        super().put(kept)
        values = kept.values
        if values["tensorflow"] is not None:
            tf.random.get_global_generator()
        if values["keras"] is not None:
            keras.src.random.seed_generator.global_seed_generator()
        for name, one in _generators().items():
            if values[name] is not None:
                one.state.assign(values[name])
        if values["eager"] is not None and (eager := context.context()._rng) is not None:
            version, numbers, gauss = values["eager"]
            eager.setstate((version, tuple(numbers), gauss))

    def reseed(self, numbers: Callable[[int], Array]) -> None:
        super().reseed(numbers)
        first, second, third, *_ = numbers(8) % 2**31
        tf.random.set_seed(int(first))
        generators = _generators()
        if generators["tensorflow"] is not None:
            generators["tensorflow"].reset_from_seed(int(second))
        if generators["keras"] is not None:
            generators["keras"].state.assign([int(third), 0])


def _generators() -> dict[str, Any]:
    return {
        "tensorflow": stateful_random_ops.global_generator,
        "keras": global_state.get_global_attribute("global_seed_generator"),
    }


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _ids(variables: Sequence[Any]) -> set[int]:
    return {id(variable) for variable in variables}
