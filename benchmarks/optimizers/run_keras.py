"""Time a step of our LARS and LAMB for Keras, and compare with updates layer by layer, and with Keras's SGD and Adam.

Usage: python benchmarks/optimizers/run_keras.py [--model resnet50|bert-large] [--repeats 7]

The benchmark has variables and random gradients only, in a `tf.function` on one thread; no model runs. The last line is
JSON: ratios of the medians of the process's CPU time, and the number of operations of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import shapes
import tensorflow as tf
from keras import ops

from herringbone_parallel.tensorflow.recipes.api import LAMB, LARS


class LarsByLayer(keras.optimizers.SGD):
    """LARS as a usual Keras optimizer, which updates one variable after the other."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        of_weight, of_gradient = (ops.sqrt(ops.sum(ops.square(tensor))) for tensor in (variable, gradient))
        ratio = 0.001 * of_weight / (of_gradient + 1e-4 * of_weight)
        ratio = ops.where(ops.logical_and(of_weight > 0, of_gradient > 0), ratio, 1.0)
        super().update_step(ratio * (gradient + 1e-4 * variable), variable, learning_rate)


def step_of(optimizer: Any, weights: list[Any], gradients: list[Any]) -> tuple[Callable[[], Any], int]:
    """Return a step that is traced and has run once, and the number of its operations."""
    optimizer.build(weights)
    step = tf.function(lambda *inputs: optimizer.apply_gradients(zip(inputs, weights, strict=True)))
    traced = step.get_concrete_function(*gradients)
    traced(*gradients)
    return lambda: traced(*gradients), len(traced.graph.get_operations())


def seconds(step: Callable[[], object]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model_shapes = shapes.MODELS[arguments.model]()
    weights = [keras.Variable(0.05 * tf.random.normal(shape), name="kernel") for shape in model_shapes]
    gradients = [0.01 * tf.random.normal(shape) for shape in model_shapes]
    makers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "lars_loop": lambda: LarsByLayer(0.1, momentum=0.9),
        "lars": lambda: LARS(0.1, weight_decay=1e-4),
        "adam": lambda: keras.optimizers.Adam(0.001),
        "lamb_loop": lambda: keras.optimizers.Lamb(0.001, weight_decay=0.01),
        "lamb": lambda: LAMB(0.001, weight_decay=0.01),
    }
    medians: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, make in makers.items():
        step, counts[name] = step_of(make(), weights, gradients)
        medians[name] = statistics.median(seconds(step) for _ in range(arguments.repeats))
        print(f"{name:<10} {1000 * medians[name]:8.1f} ms {counts[name]:6} operations", flush=True)
    ratios = {f"{name}_over_loop": medians[name] / medians[f"{name}_loop"] for name in ("lars", "lamb")}
    print(json.dumps({"model": arguments.model, "parameters": len(weights), **ratios, "operations": counts}))


if __name__ == "__main__":
    main()
