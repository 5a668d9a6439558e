"""Models that Keras's `fit` trains, over the ranks of a pipeline and in one process; both return the same figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import models
import msgspec
import numpy as np
import pipelines
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from keras import layers
from pipeline_mistakes import error_of

from herringbone_parallel.tensorflow.model_parallel import state

SAMPLES = 22
BATCH = 8


def penalized(base: Any, at: models.At) -> Any:
    """Return a model with a mask and with all kinds of penalties, which cross its partitions."""
    words = keras.Input((5,), dtype="int32")
    with at(0):
        hidden = layers.Embedding(11, 6, mask_zero=True, embeddings_regularizer="l2")(words)
        hidden = layers.LSTM(5, return_sequences=True, activity_regularizer=keras.regularizers.L2(0.1))(hidden)
    with at(1):
        out = layers.Dense(3, kernel_regularizer="l1")(hidden)
    return keras.Model(words, out)


def two_outputs(base: Any, at: models.At) -> Any:
    vectors = keras.Input((6,))
    with at(0):
        hidden = layers.Dense(6, activation="relu")(vectors)
        first = layers.Dense(3, name="first")(hidden)
    with at(1):
        second = layers.Dense(3, name="second")(hidden)
    return keras.Model(vectors, {"first": first, "second": second})


def _padded(generator: np.random.Generator) -> Any:
    # Each sample has the same number of words. Otherwise a mean over unmasked words is no mean over microbatches.
    words = generator.integers(1, 11, (models.BATCH, 5)).astype(np.int32)
    return words * np.array([1, 1, 1, 1, 0], np.int32)


CASES = {
    **models.CASES,
    "penalized": models.Case(penalized, 2, _padded, wrapped=True),
    "two outputs": models.Case(two_outputs, 2, models._vectors, wrapped=True),
}


def _data(name: str) -> Any:
    """Return inputs, labels in the structure of the outputs, and weights of the samples."""
    case = CASES[name]
    generator = np.random.default_rng(3)
    parts = [case.inputs(generator) for _ in range(SAMPLES // models.BATCH + 1)]
    inputs = tf.nest.map_structure(lambda *batches: np.concatenate(batches)[:SAMPLES], *parts)
    shape = (SAMPLES, 5) if name == "penalized" else (SAMPLES,)
    labels = generator.integers(0, case.classes, shape).astype(np.int32)
    weights = generator.uniform(0.5, 2.0, SAMPLES).astype(np.float32)
    return inputs, {"first": labels, "second": 2 - labels} if name == "two outputs" else labels, weights


def _compile(name: str, model: Any, **how: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if name == "two outputs":
        how.update(loss_weights={"first": 1.0, "second": 0.5}, metrics={"second": ["accuracy"]})
        loss = {"first": loss, "second": loss}
    else:
        how["metrics"] = ["accuracy"]
        how["weighted_metrics"] = [keras.metrics.SparseCategoricalCrossentropy("weighted", from_logits=True)]
    # A bias before a BatchNorm has gradients near 0. Adam would turn their rounding errors into full steps.
    optimizer = keras.optimizers.SGD(0.1) if name == "batch norm" else keras.optimizers.Adam(0.05)
    model.compile(optimizer=optimizer, loss=loss, **how)


def with_arrays(name: str, model: Any) -> Any:
    """Shuffle, keep a part for validation, weigh classes, change the learning rate, stop early."""
    inputs, labels, _ = _data(name)
    _compile(name, model)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
        keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, patience=1, restore_best_weights=True),
    ]
    weights = None if name in ("two outputs", "penalized") else {0: 2.0, 1: 0.5}
    how = {"batch_size": BATCH, "epochs": 3, "callbacks": callbacks, "class_weight": weights, "verbose": 0}
    history = model.fit(inputs, labels, validation_split=0.25, **how).history
    return history, model.evaluate(inputs, labels, batch_size=SAMPLES // 2, verbose=0), _predict(model, inputs)


def with_datasets(name: str, model: Any) -> Any:
    """Read datasets, weigh samples, run two batches at a time, and one more batch by itself."""
    inputs, labels, weights = _data(name)
    _compile(name, model, steps_per_execution=2)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels, weights)).batch(BATCH)
    history = model.fit(data.repeat(), epochs=2, steps_per_epoch=3, validation_data=data.take(1), verbose=0).history
    again = model.train_on_batch(inputs, labels, return_dict=True)
    return {**history, "again": list(again.values())}, model.evaluate(data, verbose=0), _predict(model, inputs)


WAYS = {"arrays": with_arrays, "datasets": with_datasets}


def _predict(model: Any, inputs: Any) -> list[Any]:
    return [np.array(output) for output in tf.nest.flatten(model.predict(inputs, batch_size=BATCH, verbose=0))]


def together(name: str, ways: list[tuple[str, str, int, list[int]]]) -> list[Any]:
    """Train once for each (way, pipeline, microbatches, placement) on this rank's part of the pipeline."""
    results = []
    for way, pipeline, microbatches, placement in ways:
        smp.init()
        rank_state = state.get()
        rank_state.settings = msgspec.structs.replace(rank_state.settings, pipeline=pipeline, microbatches=microbatches)
        keras.utils.set_random_seed(1)
        model = CASES[name].distributed(placement)
        figures = WAYS[way](name, model)
        results.append((*figures, {pipelines._name(v, model): np.array(v.value) for v in model.variables}))
        pipelines.another_job()
    return results


def alone(name: str, ways: list[str]) -> list[Any]:
    """Train the same model in this process, with plain Keras."""
    results = []
    for way in ways:
        keras.utils.set_random_seed(1)
        model = CASES[name].plain()
        figures = WAYS[way](name, model)
        results.append((*figures, {pipelines._name(v, model): np.array(v.value) for v in model.variables}))
        keras.backend.clear_session()
    return results


def replicas(name: str, placement: list[int], alone: bool) -> Any:
    """Fit this replica's share of the samples, or all of them in one process; return losses and weights."""
    inputs, labels, _ = _data(name)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).take(2 * BATCH)
    keras.utils.set_random_seed(1)
    if alone:
        model, shares = CASES[name].plain(), 1
    else:
        smp.init()
        model, shares = CASES[name].distributed(placement), smp.dp_size()
        data = data.shard(shares, smp.dp_rank())
    _compile(name, model)
    losses = model.fit(data.batch(BATCH // shares), epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, {pipelines._name(v, model): np.array(v.value) for v in model.variables}


def _small(placement: list[int]) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(1)
    inputs, labels, _ = _data("sequential")
    return models.CASES["sequential"].distributed(placement), inputs, labels


def kept_by_callbacks(folder: str) -> Any:
    """Fit with callbacks that write.

    Return the files, the newest checkpoint, and the difference between the predictions of a plain model that loads the
    weights and those of the split model; and whether this rank wrote the log of all ranks, and its own.
    """
    smp.init()
    model, inputs, labels = _small([0, 1])
    _compile("sequential", model)
    manager = smp.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer), f"{folder}/checkpoints"
    )
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", save_weights_only=True, save_best_only=True),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: manager.save()),
        *(loggers := [keras.callbacks.CSVLogger(f"{folder}/{name}.csv") for name in ("all", smp.rank())]),
    ]
    model.fit(inputs, labels, batch_size=BATCH, epochs=2, validation_split=0.3, callbacks=callbacks, verbose=0)
    model.save_weights(f"{folder}/last.weights.h5")
    split = model.predict(inputs, verbose=0)
    model.save_model(f"{folder}/model")
    plain = models.CASES["sequential"].plain()
    plain.build((None, 6))
    plain.load_weights(f"{folder}/last.weights.h5")
    difference = float(np.abs(plain.predict(inputs, verbose=0) - split).max())
    files = sorted(path.name for path in Path(folder).rglob("*.h5"))
    written = [logger.csv_file is not None for logger in loggers]
    return files, manager.latest_checkpoint, difference, written


def loaded(path: str, early: bool) -> list[float]:
    """Load weights before or after the first step; return the difference to a plain model, and the variable count."""
    smp.init()
    model, inputs, _ = _small([1, 0])
    if not early:
        keras.utils.set_random_seed(2)
        model.predict(inputs, verbose=0)
    model.load_weights(path)
    split = model.predict(inputs, verbose=0)
    plain = models.CASES["sequential"].plain()
    plain.build((None, 6))
    plain.load_weights(path)
    return [float(np.abs(plain.predict(inputs, verbose=0) - split).max()), len(model.variables)]


def refused(folder: str) -> list[str]:
    smp.init()
    model, inputs, labels = _small([0, 1])
    sums = keras.losses.MeanSquaredError(reduction="sum")
    messages = [
        error_of(lambda: model.compile("adam", "mse", jit_compile=True)),
        error_of(lambda: model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")),
        error_of(lambda: model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), "mse")),
        error_of(lambda: model.compile("adam", sums)),
    ]
    _compile("sequential", model)
    for callback in (
        keras.callbacks.ModelCheckpoint(f"{folder}/model.keras"),
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.TensorBoard(folder, histogram_freq=1),
    ):
        messages.append(error_of(lambda callback=callback: model.fit(inputs, labels, callbacks=[callback], verbose=0)))
    messages.append(error_of(model.save_weights, f"{folder}/checkpoint"))
    messages.append(error_of(model.load_weights, f"{folder}/none.weights.h5"))
    pipelines.another_job()

    class Own(keras.Sequential):
        @property
        def trainable_variables(self) -> Any:
            return super().trainable_variables

        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    messages.append(error_of(smp.DistributedModel, Own([layers.Dense(1)])))
    changed = keras.Sequential([layers.Dense(1)])
    changed.compute_loss = lambda **_: 0.0
    messages.append(error_of(smp.DistributedModel, changed))
    return messages


def other_batches() -> list[str]:
    """Return the errors for other data on each rank, for other seeds, and for a shuffle without a seed."""
    smp.init()
    model, inputs, labels = _small([0, 1])
    _compile("sequential", model)
    messages = [error_of(lambda: model.fit(inputs + smp.rank(), labels, verbose=0))]
    tf.keras.utils.set_random_seed(smp.rank())
    messages.append(error_of(lambda: model.fit(inputs, labels, verbose=0)))
    tf.random.set_seed(None)
    messages.append(error_of(lambda: model.fit(inputs, labels, batch_size=4, epochs=2, verbose=0)))
    return messages


def in_half_precision(placement: list[int] | None) -> Any:
    """Fit in float16 with a fixed scale, on the ranks or, without a placement, in one process; return the losses."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        keras.utils.set_random_seed(1)
        if placement is None:
            model = models.CASES["sequential"].plain()
        else:
            smp.init()
            model = models.CASES["sequential"].distributed(placement)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, loss_scale_factor=256.0), loss, auto_scale_loss=False)
        inputs, labels, _ = _data("sequential")
        return model.fit(inputs, labels, batch_size=BATCH, epochs=4, shuffle=False, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")


def by_a_step_of_its_own(split: bool) -> Any:
    """Fit a model with its own `train_step`: it calls a step on the ranks, or a tape in one process."""
    base = smp.DistributedModel if split else keras.Model
    if split:
        smp.init()
    keras.utils.set_random_seed(1)

    def gradients_of(model: Any, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, model(inputs), from_logits=True))
        return tape.gradient(loss, model.trainable_variables), loss

    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(6, activation="relu"), layers.Dense(3)

        def call(self, vectors: Any) -> Any:
            with smp.partition(0) if split else nullcontext():
                hidden = self.first(vectors)
            with smp.partition(1) if split else nullcontext():
                return self.second(hidden)

        def train_step(self, data: Any) -> Any:
            if split:
                gradients, loss = step(*data)
                gradients, loss = [gradient.accumulate() for gradient in gradients], loss.reduce_mean()
            else:
                gradients, loss = gradients_of(self, *data)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss}

    model = Net()
    step = smp.step(lambda inputs, labels: gradients_of(model, inputs, labels))
    inputs, labels, _ = _data("dense")
    model.compile(keras.optimizers.Adam(0.05))
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH, drop_remainder=True)
    return model.fit(data, epochs=3, verbose=0).history["own"]


def compiled_again(split: bool) -> Any:
    """Fit with a frozen layer, then all layers with another loss and metric; return the figures of each `fit`.

    The last figure is the number of gradients that a step outside of `fit` returns before and after a layer is frozen.
    """
    if split:
        smp.init()
        model, inputs, labels = _small([0, 1])
    else:
        keras.utils.set_random_seed(1)
        model, (inputs, labels, _) = models.CASES["sequential"].plain(), _data("sequential")
    first = (model.module if split else model).layers[0]
    inputs, labels = inputs[:BATCH], np.eye(3, dtype=np.float32)[labels[:BATCH]]
    figures: list[Any] = []
    for trained, loss, metric in (
        (False, keras.losses.CategoricalCrossentropy(from_logits=True), "mae"),
        (True, "mse", "mse"),
    ):
        first.trainable = trained
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=[metric])
        figures.append(list(model.fit(inputs, labels, batch_size=BATCH, epochs=2, verbose=0).history.values()))
        figures.append(model.evaluate(inputs, labels, batch_size=BATCH, verbose=0))

    def gradients_of(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        return tape.gradient(loss, model.trainable_variables)

    step = smp.step(gradients_of) if split else gradients_of
    before = len(step(inputs))
    first.trainable = False
    return figures, [before, len(step(inputs))]


def outputs_by_name(split: bool) -> Any:
    """Fit a list of outputs, whose losses, weights and metrics are given by name; return the figures by their names."""
    keras.utils.set_random_seed(1)
    vectors = keras.Input((6,))
    outputs = [layers.Dense(3, name=name)(vectors) for name in ("first", "second")]
    model = keras.Model(vectors, outputs)
    if split:
        smp.init()
        model = smp.DistributedModel(model)
    inputs, labels, _ = _data("dense")
    labels = np.eye(3, dtype=np.float32)[labels]
    model.compile(
        keras.optimizers.SGD(0.1),
        {"second": "mae", "first": "mse"},
        loss_weights={"second": 0.5, "first": 2.0},
        metrics={"second": ["accuracy"]},
    )
    # Whole batches: Keras weighs the loss of an output by the size of a batch only where the graph knows it.
    inputs, labels = inputs[: 2 * BATCH], labels[: 2 * BATCH]
    return model.fit(inputs, [labels, -labels], batch_size=BATCH, shuffle=False, verbose=0).history


def a_rank_without_variables() -> Any:
    """Fit with only operations on one partition; return the number of iterations, of own variables, and the losses."""
    smp.init()
    keras.utils.set_random_seed(1)

    class Net(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.out = layers.Dense(6, trainable=False), layers.Dense(3)

        def call(self, vectors: Any) -> Any:
            with smp.partition(0):
                hidden = self.out(self.frozen(vectors))
            with smp.partition(1):
                return tf.nn.softmax(hidden)

    model = Net()
    inputs, labels, _ = _data("dense")
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    history = model.fit(inputs, labels, batch_size=BATCH, verbose=0).history
    return int(model.optimizer.iterations), len(model.trainable_variables), history["loss"]
