"""One rank of run.py: time its part of the pipeline's steps. Rank 0 also times the same steps in one process."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import herringbone_parallel.tensorflow.model_parallel.api as smp
from herringbone_parallel.tensorflow.model_parallel import state


class Block(keras.layers.Layer):
    """A block of a transformer's encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(8, width // 8)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.inner, self.outer = keras.layers.Dense(4 * width, activation="gelu"), keras.layers.Dense(width)

    def call(self, hidden: Any) -> Any:
        first, second = self.norms
        normed = first(hidden)
        hidden = hidden + self.attention(normed, normed)
        return hidden + self.outer(self.inner(second(hidden)))


class Workload(NamedTuple):
    """The kind and number of layers, and the shape of a batch."""

    layer: Callable[[int], Any]
    layers: int
    batch: tuple[int, ...]


def dense(width: int) -> Any:
    return keras.layers.Dense(width, activation="relu")


# A stage of `large` takes more than 50 ms per microbatch.
WORKLOADS = {
    "small": Workload(dense, 8, (512, 1024)),
    "large": Workload(dense, 8, (4096, 1024)),
    "encoder": Workload(Block, 4, (64, 64, 512)),
}


def build(base: Any, workload: Workload, at: Callable[[int], Any]) -> Any:
    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = [workload.layer(workload.batch[-1]) for _ in range(workload.layers)]

        def call(self, hidden: Any, training: Any = None) -> Any:  # noqa: ARG002
            for number, layer in enumerate(self.parts):
                with at(number * 2 // workload.layers):
                    hidden = layer(hidden)
            return hidden

    return Net()


def gradients_of(model: Any) -> Callable[..., Any]:
    def gradients(inputs: Any, target: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - target))
        return tape.gradient(loss, model.trainable_variables), loss

    return gradients


class Spent(NamedTuple):
    """The costs of a step: seconds until all ranks have ended, and this rank's processor time and page faults."""

    seconds: float
    cpu_s: float
    faults: int


def timed(step: Callable[[], Any]) -> Spent:
    smp.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start, cpu = time.perf_counter(), time.process_time()
    step()
    cpu = time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    smp.barrier()
    return Spent(time.perf_counter() - start, cpu, after.ru_minflt - before.ru_minflt)


def peak() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    workload = WORKLOADS[sys.argv[1]]
    microbatches, repeats = int(sys.argv[2]), int(sys.argv[3])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    smp.init()
    generator = np.random.default_rng(0)
    inputs = tf.constant(generator.normal(size=workload.batch).astype(np.float32))
    target = tf.constant(generator.normal(size=workload.batch).astype(np.float32))
    model = build(smp.DistributedModel, workload, smp.partition)
    split = smp.step(gradients_of(model))

    @tf.function
    def ours() -> Any:
        gradients, loss = split(inputs, target)
        return [gradient.accumulate() for gradient in gradients], loss.reduce_mean()

    ours()
    ours()
    # Read the step's peak memory before rank 0 builds the second model.
    peak_bytes = peak()
    whole = build(keras.Model, workload, lambda partition: nullcontext())  # noqa: ARG005
    one = gradients_of(whole)

    @tf.function
    def single() -> Any:
        total: Any = None
        for part, part_target in zip(tf.split(inputs, microbatches), tf.split(target, microbatches), strict=True):
            gradients, _ = one(part, part_target)
            total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        return [gradient / microbatches for gradient in total]

    @tf.function
    def at_once() -> Any:
        return one(inputs, target)[0]

    # "single" runs on one rank, "both" runs the same on both: their ratio shows the cost of shared caches and memory.
    cases = {"ours": ours, "both": single}
    for name, alone in {"single": single, "at_once": at_once}.items():
        cases[name] = alone if smp.rank() == 0 else lambda: None
    costs: dict[str, list[Spent]] = {name: [] for name in cases}
    for repeat in range(-1, repeats):
        for name in sorted(cases, reverse=repeat % 2 == 0):
            spent = timed(cases[name])
            if repeat >= 0:
                costs[name].append(spent)
    report = {name: [spent._asdict() for spent in case] for name, case in costs.items()}
    print(
        json.dumps(
            {**report, "peak_bytes": peak_bytes, "single_peak_bytes": peak(), "peak_live": state.get().peak_live}
        )
    )


if __name__ == "__main__":
    main()
