"""Weights in the formats of TensorFlow 2.3 to 2.6: checkpoints of TensorFlow, and files of Keras 2."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format

from herringbone_parallel.tensorflow.patches import Patches

# Endings of files that Keras 3 writes itself, and endings that Keras 2 took for its own format.
_KERAS_3 = (".weights.h5", ".weights.json")
_KERAS_2 = (".h5", ".hdf5", ".keras")
_LOAD = ("by_name", "skip_mismatch", "options")


def patch(patches: Patches) -> None:
    patches.set(keras.Model, "save_weights", _saving(keras.Model.save_weights))
    patches.set(keras.Model, "load_weights", _loading(keras.Model.load_weights))


def _saving(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def call(
        self: Any,
        filepath: Any,
        overwrite: bool = True,
        save_format: str | None = None,
        options: Any = None,
        **how: Any,
    ) -> None:
        path = os.fspath(filepath)
        if path.endswith(_KERAS_3) or how:
            save(self, filepath, overwrite, **how)
            return
        if not self.built:
            raise ValueError(f"save_weights({path!r}): {self.name} has no weights yet; call it on a batch first")
        if save_format == "h5" or (save_format is None and path.endswith(_KERAS_2)):
            if not overwrite and Path(path).exists():
                raise FileExistsError(f"save_weights({path!r}, overwrite=False): the file exists")
            with h5py.File(path, "w") as file:
                legacy_h5_format.save_weights_to_hdf5_group(file, self)
            return
        tf.train.Checkpoint(self).write(path, options)
        # `tf.train.latest_checkpoint(folder)` finds a checkpoint by the file that this call writes.
        folder = os.path.split(path)[0] or "."
        tf.__internal__.train.update_checkpoint_state(folder, path, [path], save_relative_paths=True)

    return call


def _loading(load: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(load)
    def call(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filepath)
        how = {**dict(zip(_LOAD, args, strict=False)), **kwargs}
        options = how.pop("options", None)
        if tf.io.gfile.exists(f"{path}.index"):
            if how.get("by_name"):
                raise ValueError(
                    f"load_weights({path!r}, by_name=True): a checkpoint is loaded by the model's structure"
                )
            if not self.built:
                raise ValueError(f"load_weights({path!r}): {self.name} has no weights yet; call it on a batch first")
            return tf.train.Checkpoint(self).read(path, options)
        return load(self, filepath, **{name: value for name, value in how.items() if value})

    return call
