"""Runs the examples' scripts for TensorFlow in the ranks of `tests/parallel/tensorflow/ranks.py`, without jobs."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@contextmanager
def script(example: str) -> Iterator[ModuleType]:
    """Import an example's `train.py` for TensorFlow. Unload it with the modules next to it afterwards."""
    folders = [str(EXAMPLES / example / "src_tensorflow"), str(EXAMPLES / example / "shared"), str(EXAMPLES)]
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        yield importlib.import_module("train")
    finally:
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            if Path(str(getattr(module, "__file__", ""))).parent in map(Path, folders[:2]):
                del sys.modules[name]


def trained(example: str, data: str, settings: dict[str, Any]) -> tuple[list[float], dict[str, float]]:
    """Train until `steps`; return the losses, and the metrics of one evaluation."""
    with script(example) as train:
        parsed = train.parse([f"--{name}={value}" for name, value in settings.items()])
        world = train.world.join()
        training = train.Training(parsed, world, Path(data, "train"), Path(data, "test"))
        losses = []
        for epoch in range(training.epochs):
            for loss in training.epoch(epoch):
                losses.append(loss)
                if len(losses) == parsed.steps:
                    return losses, training.evaluate()
        return losses, training.evaluate()


def alike() -> int:
    """Return the number of pairs of layers of the small Mask R-CNN that begin with the same kernel."""
    with script("mask_rcnn"):
        model = importlib.import_module("models").build("small", 3)
        kernels = [variable.numpy() for variable in model.trainable_variables if variable.name == "kernel"]
    pairs = itertools.combinations(kernels, 2)
    return sum(first.shape == second.shape and bool((first == second).all()) for first, second in pairs)


def gathered() -> list[str]:
    """Gather lines of different lengths, one of them empty."""
    with script("bert_squad") as train:
        world = train.world.join()
        return world.gather("ä" * world.rank)


def compared(example: str, folder: str) -> dict[str, float]:
    """Load HuggingFace's weights by name. Return the loss, and the largest differences to `reference.npz`."""
    import tensorflow as tf

    reference = dict(np.load(Path(folder, "reference.npz")))
    with script(example) as train:
        sizes = {"rank-batch": 4, "global-batch": 4, "length": reference["batch.tokens"].shape[1]}
        settings = train.parse([f"--pretrained={folder}", *(f"--{name}={value}" for name, value in sizes.items())])
        training = train.Training.__new__(train.Training)
        training.settings, training.world = settings, train.world.World(0, 1)
        length = (settings.length,) if example == "bert_pretrain" else ()
        training.model = training.build_model(0, *length)
        names = train.Batch._fields
        batch = train.Batch(**{name: reference[f"batch.{name}"] for name in names})
        weights = training.model.weights_by_name()
        with tf.GradientTape() as tape:
            loss = training.loss(batch)
        gradients = tape.gradient(loss, [weight.variable.value for weight in weights.values()])
        differences = {"loss": abs(float(loss) - float(reference["loss"])), "weights": float(len(weights))}
        expected = {name.removeprefix("gradient.") for name in reference if name.startswith("gradient.")}
        differences["missing"] = float(len(expected ^ set(weights)))
        largest = 0.0
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            value = weight.array(tf.convert_to_tensor(gradient).numpy())
            largest = max(largest, float(np.abs(value - reference[f"gradient.{name}"]).max()))
        return {**differences, "gradient": largest}


def optimized(name: str, start: list[float], gradients: list[list[float]]) -> list[float]:
    """Apply gradients to one matrix, and return it: by the example's optimizer without ranks."""
    with script("bert_squad") as train:
        import keras

        keras.config.set_dtype_policy("float32")
        model = keras.Sequential([keras.Input((len(start),)), keras.layers.Dense(1, use_bias=False)])
        model.layers[0].kernel.assign(np.array(start, np.float32)[:, None])
        settings = train.parse([f"--optimizer={name}", "--lr=0.1", "--weight-decay=0.1", "--clip=100"])
        updates = importlib.import_module("common.for_tensorflow.updates")
        optimizer = updates.build_optimizer(settings, train.world.World(0, 1), model, 1)
        for gradient in gradients:
            optimizer.apply([np.array(gradient, np.float32)[:, None]], model.trainable_variables)
        return model.layers[0].kernel.numpy().ravel().tolist()


def refused(example: str, data: str, settings: dict[str, Any]) -> str:
    """Return the message with which the script refuses the settings."""
    try:
        trained(example, data, settings)
    except ValueError as error:
        return str(error)
    return f"nothing was refused in {os.getpid()}"
