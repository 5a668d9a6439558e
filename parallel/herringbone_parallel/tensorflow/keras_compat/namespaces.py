"""Modules that Keras 3 removed, with their members from where Keras 3 has them now."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.tensorflow.patches import Patches

# `keras`, and the two copies of its namespace in TensorFlow: `tf.keras`, and the target of `import tensorflow.keras`.
_ROOTS = ("keras", "keras._tf_keras.keras", "tensorflow.keras")
_PREPROCESSING = [
    "CategoryEncoding",
    "CenterCrop",
    "Discretization",
    "Hashing",
    "IntegerLookup",
    "Normalization",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomHeight",
    "RandomRotation",
    "RandomTranslation",
    "RandomWidth",
    "RandomZoom",
    "Rescaling",
    "Resizing",
    "StringLookup",
    "TextVectorization",
]
_SCHEDULES = ("CosineDecay", "CosineDecayRestarts")


def patch(patches: Patches) -> None:
    layers = {name: layer for name in _PREPROCESSING if (layer := getattr(tf.keras.layers, name, None)) is not None}
    layers["PreprocessingLayer"] = keras.layers.Layer
    schedules = {name: getattr(keras.optimizers.schedules, name) for name in _SCHEDULES}
    precision = {
        "Policy": keras.mixed_precision.DTypePolicy,
        "set_policy": keras.mixed_precision.set_global_policy,
        "global_policy": keras.mixed_precision.global_policy,
        "LossScaleOptimizer": _loss_scale_optimizer,
    }
    # Each root has modules of its own, so each one needs the patches.
    for root in _roots():
        experimental = patches.module(importlib.import_module(f"{root.__name__}.layers"), "experimental", {})
        patches.module(experimental, "preprocessing", layers)
        patches.module(importlib.import_module(f"{root.__name__}.mixed_precision"), "experimental", precision)
        patches.module(root, "experimental", schedules)
        backend = importlib.import_module(f"{root.__name__}.backend")
        patches.set(backend, "get_value", _get_value)
        patches.set(backend, "set_value", _set_value)


def _roots() -> Iterator[ModuleType]:
    for name in _ROOTS:
        yield importlib.import_module(name)


def _get_value(x: Any) -> Any:
    """Return the value of a variable or tensor."""
    return np.asarray(x)[()]


def _set_value(x: Any, value: Any) -> None:
    """Set a variable; Keras 3's own `set_value` fails for a variable of Keras 3."""
    x.assign(value)


def _loss_scale_optimizer(optimizer: Any, loss_scale: Any = "dynamic") -> Any:
    """Return Keras 3's optimizer for the `loss_scale` of the experimental one: "dynamic", or a fixed number."""
    if loss_scale != "dynamic":
        raise ValueError(
            f"LossScaleOptimizer(loss_scale={loss_scale!r}): Keras 3 has the dynamic one. For a fixed scale give the"
            f" optimizer loss_scale_factor={loss_scale!r}"
        )
    return keras.mixed_precision.LossScaleOptimizer(optimizer)
