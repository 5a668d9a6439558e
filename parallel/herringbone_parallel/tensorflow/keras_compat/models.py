"""Calls of TensorFlow 2.3 to 2.6 that train, evaluate and save models."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from herringbone_parallel.tensorflow.patches import Patches, defining_class

# The new name of each old method, and the old order of its arguments.
_GENERATORS = {
    "fit_generator": (
        "fit",
        "steps_per_epoch epochs verbose callbacks validation_data validation_steps validation_freq class_weight"
        " max_queue_size workers use_multiprocessing shuffle initial_epoch",
    ),
    "evaluate_generator": ("evaluate", "steps callbacks max_queue_size workers use_multiprocessing verbose"),
    "predict_generator": ("predict", "steps callbacks max_queue_size workers use_multiprocessing verbose"),
}
_QUEUE = ("workers", "use_multiprocessing", "max_queue_size")
# The order of arguments before Keras 3, which exchanged metrics and loss_weights.
_COMPILE = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "run_eagerly")
_FILES = (".keras", ".h5", ".hdf5")


def patch(patches: Patches) -> None:
    model = keras.Model
    for name in ("fit", "evaluate", "predict"):
        patches.set(model, name, _with_queue(getattr(model, name)))
    for name, (new_name, arguments) in _GENERATORS.items():
        patches.set(model, name, _generator_method(name, new_name, arguments.split()))
    # Keras compiles a loaded model where `compile` is that of this class.
    trainer = defining_class(model, "compile")
    patches.set(trainer, "compile", _compiling(trainer.compile))
    patches.set(model, "save", _saving(model.save))
    patches.set(model, "predict_proba", _predict_proba)
    patches.set(model, "predict_classes", _predict_classes)


def _with_queue(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        queue = {name: kwargs.pop(name) for name in _QUEUE if name in kwargs}
        if isinstance(x, keras.utils.PyDataset):
            # In Keras 3 these settings belong to the data, not to `fit`.
            for name, value in queue.items():
                setattr(x, name, value)
        elif queue.get("workers", 1) > 1 or queue.get("use_multiprocessing"):
            warnings.warn(
                f"{method.__name__}(workers=, use_multiprocessing=): Keras 3 reads a {type(x).__name__} in one thread;"
                " make it a keras.utils.Sequence, which several can read",
                stacklevel=2,
            )
        return method(self, x, *args, **kwargs)

    return call


def _generator_method(name: str, new_name: str, arguments: list[str]) -> Callable[..., Any]:
    def call(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(arguments):
            raise TypeError(f"{name} takes a generator and {len(arguments)} arguments; got {len(args)} more than that")
        data = _tuples(generator) if isinstance(generator, Iterator) else generator
        return getattr(self, new_name)(data, **dict(zip(arguments, args, strict=False)), **kwargs)

    call.__name__ = name
    return call


def _tuples(generator: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of a generator as tuples."""
    # Keras 3 accepts tuples only; before, a batch that was no tuple was an input without labels.
    for batch in generator:
        yield batch if isinstance(batch, tuple) else (batch,)


def _compiling(compile_: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(compile_)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        # The argument chose between two ways to run a model. Only the one for False still exists.
        kwargs.pop("experimental_run_tf_function", None)
        compile_(self, **dict(zip(_COMPILE, args, strict=False)), **kwargs)

    return call


def _saving(save: Callable[..., None]) -> Callable[..., None]:
    """Return a `save` that writes a SavedModel for a path without the ending of a file, as TensorFlow 2 did."""

    @functools.wraps(save)
    def call(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        path = os.fspath(filepath)
        if path.endswith(_FILES) or kwargs.get("zipped") is False or kwargs.get("save_format") in ("h5", "keras"):
            save(self, filepath, *args, **kwargs)
            return
        for name in ("signatures", "options"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"save({name}=): not with Keras 3; use tf.saved_model.save(model, {path!r}, {name}=...)"
                )
        self.export(path, format="tf_saved_model", verbose=False)

    return call


def _predict_proba(model: Any, *args: Any, **kwargs: Any) -> Any:
    return model.predict(*args, **kwargs)


def _predict_classes(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the number of the likeliest class; for a single output, 1 above a half and 0 otherwise."""
    probabilities = model.predict(*args, **kwargs)
    return np.argmax(probabilities, -1) if probabilities.shape[-1] > 1 else (probabilities > 0.5).astype("int32")
