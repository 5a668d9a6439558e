"""Train with `fit`, undisturbed and with planted faults, and print each training's records of steps and its weights."""

import sys
from typing import Any

import keras
import msgspec
import numpy as np

from herringbone_parallel import fingerprints
from herringbone_parallel.tensorflow.fingerprints import record

inputs = np.random.RandomState(0).rand(24, 4).astype("float32")


def model_of(steps_per_execution: int = 1) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=steps_per_execution)
    return model


def fit(model: Any, rows: Any) -> None:
    model.fit(inputs[rows], inputs[rows].sum(1), batch_size=4, shuffle=False, verbose=0)


def train(fault: str = "", steps_per_execution: int = 1) -> Any:
    """Train six steps, the last three of them as a process that has been restarted does."""
    model = model_of(steps_per_execution)
    fit(model, range(12))
    if sent is not None:
        sent.append([])
    if fault == "state":
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape))
    if fault == "rate":
        model.optimizer.learning_rate = 0.005
    fit(model, [*range(12, 24)][:: -1 if fault == "order" else 1])
    return [weight.tolist() for weight in model.get_weights()]


sent: Any = None
weights = {"plain": train(), "several": train(steps_per_execution=2)}
begun: list[fingerprints.Recorder] = []
begin = fingerprints.Recorder.begin


def collected(self: fingerprints.Recorder, _send: Any) -> None:
    begun.append(self)
    begin(self, lambda step, rank: sent[-1].append(step))


fingerprints.Recorder.begin = collected  # type: ignore[method-assign]
record()
records = {}
for name, fault, several in (("plain", "", 1), ("several", "", 2), *((one, one, 1) for one in sys.argv[1:])):
    sent = [[]]
    begun[0].begin(None)  # type: ignore[arg-type]
    found = train(fault, several)
    if not fault:
        assert found == weights[name], name
    records[name] = sent
print(msgspec.json.encode(records).decode())
