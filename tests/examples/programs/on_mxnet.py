"""Compare an example's model on MXNet with torch's: `on_mxnet.py EXAMPLE FOLDER`, of `bert_reference.py`'s folders.

The last line is JSON: the largest differences of the loss, the gradients, and the weights after steps of optimizers.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# The first five steps of RAdam have another formula than the later ones.
STEPS = 7


def optimized(name: str) -> float:
    """Return the largest difference to the closed form of the same steps in NumPy, in fp64."""
    optimizers = importlib.import_module("common.for_mxnet.optimizers")
    optimizer = {"adamw": optimizers.AdamW, "radam": optimizers.RAdam}[name](learning_rate=0.1, wd=0.1)
    weight = mx.nd.array([1.0, -2.0, 0.5])
    expected, mean, square = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.zeros(3)
    state = optimizer.create_state(0, weight)
    for step in range(1, STEPS + 1):
        gradient = np.array([0.3 * step - 1, 0.5, -0.1 * step])
        optimizer.update(0, weight, mx.nd.array(gradient), state)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        expected = expected * (1 - 0.1 * 0.1)
        fading = 0.999**step
        length = 1999 - 2 * step * fading / (1 - fading)
        if name == "adamw":
            factor = 1 / (np.sqrt(square / (1 - fading)) + 1e-8)
        elif length > 5:
            scale = (length - 4) * (length - 2) * 1999 / (1995 * 1997 * length)
            factor = np.sqrt(scale * (1 - fading)) / (np.sqrt(square) + 1e-8)
        else:
            factor = 1.0
        expected = expected - 0.1 * mean / (1 - 0.9**step) * factor
    return float(np.abs(weight.asnumpy() - expected).max())


def main(example: str, folder: Path) -> None:
    sys.path[:0] = [str(EXAMPLES / example / "src_mxnet"), str(EXAMPLES / example / "shared"), str(EXAMPLES)]
    train = importlib.import_module("train")
    reference = dict(np.load(folder / "reference.npz"))
    sizes = {"rank-batch": 4, "global-batch": 4, "length": reference["batch.tokens"].shape[1]}
    settings = train.parse([f"--pretrained={folder}", *(f"--{name}={value}" for name, value in sizes.items())])
    training = train.Training.__new__(train.Training)
    training.settings, training.world = settings, train.world.World(0, 1, mx.cpu())
    training.model = training.build_model(0, *((settings.length,) if example == "bert_pretrain" else ()))
    weights = training.model.weights_by_name()
    with autograd.record():
        loss = training.loss(train.Batch(**{name: reference[f"batch.{name}"] for name in train.Batch._fields}))
    loss.backward()
    gradients = {name: weight.grad().asnumpy() for name, weight in weights.items()}
    expected = {name[len("gradient.") :]: value for name, value in reference.items() if name.startswith("gradient.")}
    settings.precision = "bf16"
    try:
        training.build_model(0, *((settings.length,) if example == "bert_pretrain" else ()))
        refused = "nothing"
    except ValueError as error:
        refused = str(error)
    result = {
        "weights": len(weights),
        "missing": sorted(set(expected) ^ set(weights)),
        "loss": abs(float(loss.asscalar()) - float(reference["loss"])),
        "gradient": max(float(np.abs(gradients[name] - value).max()) for name, value in expected.items()),
        **{name: optimized(name) for name in ("adamw", "radam")},
        "refused": refused,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
