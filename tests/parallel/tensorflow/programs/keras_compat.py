"""Calls of scripts for TensorFlow 2.3 to 2.6, each on a Keras that accepts them and is restored afterwards."""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.tensorflow.keras_compat import api as keras_compat
from herringbone_parallel.tensorflow.keras_compat.api import activate, check_version, deactivate

IMAGES = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
LABELS = (IMAGES.sum(1) > 0).astype("int32")


@contextmanager
def activated():
    with as_it_was():
        activate()
        yield


@contextmanager
def as_it_was():
    """Run the `with` block on an unchanged Keras; restore the state that other programs of this process had."""
    was_active = keras_compat._active is not None
    deactivate()
    try:
        yield
    finally:
        deactivate()
        if was_active:
            activate()


def run(name):
    with activated():
        return globals()[name]()


def dense(outputs=3, **how):
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(outputs, **how)])


def everything_is_put_back():
    """Return whether the patched names exist before, during and after the activation."""
    names = [
        (keras.optimizers.Adam, "get_gradients get_weights lr weights _decayed_lr"),
        (keras.metrics.Mean, "reset_states"),
        (keras.Model, "fit_generator predict_classes predict_proba evaluate_generator predict_generator reset_states"),
        (keras.layers, "experimental"),
        (tf.keras.mixed_precision, "experimental"),
        (tf.keras, "experimental"),
    ]

    def existing():
        return [hasattr(owner, name) for owner, listed in names for name in listed.split()]

    def inner():
        base = next(kind for kind in keras.Optimizer.__mro__ if "apply_gradients" in vars(kind))
        methods = [getattr(keras.Model, name) for name in ("compile", "fit", "evaluate", "predict", "save")]
        return [base.__init__, base.variables, base.apply_gradients, tf.keras.backend.set_value, *methods]

    with as_it_was():
        before, inside = existing(), inner()
        activate()
        activate()
        during = existing()
        changed = [one is not other for one, other in zip(inside, inner(), strict=True)]
        deactivate()
        deactivate()
        after, restored = existing(), inner()
        left = [name for name in sys.modules if "keras" in name and name.endswith(".experimental")]
    return any(before), all(during), before == after, all(changed), inside == restored, left


def other_versions():
    messages = []
    for version in ("2.15.0", "4.0.0"):
        try:
            check_version(version)
        except Exception as error:  # noqa: BLE001
            messages.append(f"{type(error).__name__}: {error}")
    check_version("3.15.1")
    return messages


def get_gradients():
    model, optimizer = dense(), tf.keras.optimizers.Adam()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def old_way():
        return optimizer.get_gradients(loss_of(LABELS, model(IMAGES, training=True)), model.trainable_variables)

    @tf.function
    def new_way():
        with tf.GradientTape() as tape:
            loss = loss_of(LABELS, model(IMAGES, training=True))
        return tape.gradient(loss, model.trainable_variables)

    ours, theirs = old_way(), new_way()
    optimizer.apply_gradients(zip(ours, model.trainable_variables, strict=True))
    return [float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)], int(optimizer.iterations)


def gradients_that_are_not_there():
    optimizer, model, messages = keras.optimizers.SGD(), dense(), []
    unused = keras.Variable(1.0, name="unused")
    for call in (lambda: optimizer.get_gradients(1.0, []), tf.function(lambda: optimizer.get_gradients(
        tf.reduce_sum(model(IMAGES)), [*model.trainable_variables, unused]))):  # fmt: skip
        try:
            call()
        except (RuntimeError, ValueError) as error:
            messages.append(str(error))
    return messages


def variables_may_be_called():
    optimizer = keras.optimizers.Adam()
    optimizer.build(dense().trainable_variables)
    called, listed = optimizer.variables(), optimizer.variables
    same = [one is other for one, other in zip(called, listed, strict=True)]
    weights = optimizer.get_weights()
    optimizer.set_weights([weight + 1 for weight in weights])
    after = [float(np.abs(now - was).min()) for now, was in zip(optimizer.get_weights(), weights, strict=True)]
    return len(called), all(same), len(optimizer.weights()), set(after)


def learning_rates():
    optimizer = tf.keras.optimizers.Adam(lr=0.25)
    first = float(optimizer.lr), float(optimizer.learning_rate)
    optimizer.lr = 0.5
    tf.keras.backend.set_value(optimizer.lr, float(tf.keras.backend.get_value(optimizer.lr)) / 2)
    second = float(optimizer._decayed_lr(tf.float32))
    return first, second, float(keras.optimizers.SGD(0.125).lr)


def decay():
    """Return the learning rates of the first steps, and those that Keras 2 documented for `decay`."""
    optimizer, weight = keras.optimizers.SGD(learning_rate=0.5, decay=0.25, momentum=0.0), keras.Variable(0.0)
    rates = []
    for _ in range(4):
        before = float(weight.value)
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
        rates.append(before - float(weight.value))
    try:
        keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), decay=0.1)
    except ValueError as error:
        message = str(error)
    return (
        rates,
        [0.5 / (1 + 0.25 * step) for step in range(4)],
        float(keras.optimizers.SGD(0.5, decay=0.0).lr),
        message,
    )


def apply_gradients_of_old():
    optimizer, weight = keras.optimizers.SGD(0.5), keras.Variable(1.0)
    optimizer.apply_gradients([(tf.constant(1.0), weight)], name="train", experimental_aggregate_gradients=False)
    return float(weight.value)


def metrics():
    class Old(keras.metrics.Mean):
        """Overrides the old name only."""

        resets = 0

        def reset_states(self):
            self.resets += 1
            super().reset_states()

    class New(keras.metrics.Mean):
        resets = 0

        def reset_state(self):
            self.resets += 1
            super().reset_state()

    results = []
    for kind in (keras.metrics.Mean, Old, New):
        for spelling in ("reset_states", "reset_state"):
            metric = kind()
            metric.update_state(3.0)
            getattr(metric, spelling)()
            results.append((float(metric.result()), getattr(metric, "resets", None)))
    return results


def recurrent_states():
    model = keras.Sequential([keras.Input((2, 3), batch_size=1), keras.layers.LSTM(4, stateful=True)])
    ones = np.ones((1, 2, 3), "float32")
    first, second = model.predict(ones, verbose=0), model.predict(ones, verbose=0)
    model.reset_states()
    third = model.predict(ones, verbose=0)
    return bool(np.allclose(first, second)), bool(np.allclose(first, third))


def seeds():
    """Return whether the same seed repeats weights and dropout, and whether another seed does."""
    ones = np.ones((1, 64), "float32")

    def drawn(seed):
        tf.random.set_seed(seed)
        kernel = keras.layers.Dense(4)(ones)
        return float(np.asarray(kernel).sum()), keras.layers.Dropout(0.5)(ones, training=True).numpy().tolist()

    return drawn(7) == drawn(7), drawn(7)[0] == drawn(8)[0]


class Batches(keras.utils.Sequence):
    def __init__(self):
        super().__init__()

    def __len__(self):
        return 4

    def __getitem__(self, number):
        part = slice(8 * number, 8 * number + 8)
        return IMAGES[part], LABELS[part]


def generators():
    def forever():
        while True:
            for number in range(4):
                yield Batches()[number]

    def images():
        for number in range(4):
            yield Batches()[number][0]

    losses, read = [], Batches()
    for fit in (
        lambda model: model.fit(IMAGES, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0),
        lambda model: model.fit_generator(forever(), 4, 2, 0),
        lambda model: model.fit_generator(read, epochs=2, verbose=0, workers=2, max_queue_size=3, shuffle=False),
    ):
        model = dense()
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(fit(model).history["loss"][-1])
    evaluated = model.evaluate_generator(Batches(), verbose=0) - model.evaluate(IMAGES, LABELS, batch_size=8, verbose=0)
    predicted = np.abs(model.predict_generator(images(), steps=4) - model.predict(IMAGES, verbose=0)).max()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(forever(), steps_per_epoch=1, workers=4, verbose=0)
    warned = [str(warning.message) for warning in caught if "workers" in str(warning.message)]
    return losses, abs(evaluated), float(predicted), (read.workers, read.max_queue_size), warned


def predictions():
    model, one = dense(activation="softmax"), dense(1, activation="sigmoid")
    likely = model.predict(IMAGES, verbose=0)
    classes = model.predict_classes(IMAGES, verbose=0)
    above = one.predict_classes(IMAGES, verbose=0)
    return (
        bool((model.predict_proba(IMAGES, verbose=0) == likely).all()),
        bool((classes == likely.argmax(-1)).all()),
        bool((above == (one.predict(IMAGES, verbose=0) > 0.5)).all()),
        above.shape,
    )


def compile_of_old():
    model = dense()
    model.compile("sgd", "mse", ["mae"], experimental_run_tf_function=False)
    return type(model.optimizer).__name__, sorted(model.evaluate(IMAGES, IMAGES[:, :3], verbose=0, return_dict=True))


def saved_models():
    """Return how far saved models predict from the original, in both formats, and the error for `signatures`."""
    model = dense(activation="softmax")
    wanted = model.predict(IMAGES, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        model.save(path / "1")
        model.save(str(path / "tf"), save_format="tf", include_optimizer=False)
        model.save(path / "whole.keras")
        try:
            model.save(path / "2", signatures=object())
        except ValueError as error:
            message = str(error).replace(folder, "")
        deactivate()
        differences = [
            float(np.abs(keras.layers.TFSMLayer(path / name, call_endpoint="serve")(IMAGES) - wanted).max())
            for name in ("1", "tf")
        ]
        whole = keras.models.load_model(path / "whole.keras").predict(IMAGES, verbose=0)
        return differences, float(np.abs(whole - wanted).max()), message


def weights():
    """Return how far loaded weights predict from saved ones, in each old format, and the errors for wrong calls."""
    model = dense()
    wanted = model.predict(IMAGES, verbose=0)
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for name, how in (("tf", {}), ("tf2", {"save_format": "tf"}), ("old.h5", {}), ("new.weights.h5", {})):
            model.save_weights(f"{folder}/{name}", **how)
            other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
            status = other.load_weights(f"{folder}/{name}")
            if name.startswith("tf"):
                status.expect_partial()
                assert tf.train.latest_checkpoint(folder) == f"{folder}/{name}"
            differences.append(float(np.abs(other.predict(IMAGES, verbose=0) - wanted).max()))
        messages = []
        for wrong in (
            lambda: keras.Sequential([keras.layers.Dense(3)]).load_weights(f"{folder}/tf"),
            lambda: model.load_weights(f"{folder}/tf", by_name=True),
            lambda: model.save_weights(f"{folder}/old.h5", overwrite=False),
        ):
            try:
                wrong()
            except (ValueError, FileExistsError) as error:
                messages.append(str(error).replace(folder, ""))
        # Keras 3 reads the files of Keras 2 without the patches.
        deactivate()
        other.load_weights(f"{folder}/old.h5")
        differences.append(float(np.abs(other.predict(IMAGES, verbose=0) - wanted).max()))
    return differences, messages


def namespaces():
    from tensorflow.keras.layers.experimental import preprocessing
    from tensorflow.keras.layers.experimental.preprocessing import Rescaling
    from tensorflow.keras.mixed_precision import experimental as mixed_precision

    scaled = Rescaling(0.5)(tf.ones((1, 2)))
    same = preprocessing.Rescaling is tf.keras.layers.experimental.preprocessing.Rescaling is keras.layers.Rescaling
    before = keras.mixed_precision.dtype_policy().name
    mixed_precision.set_policy(mixed_precision.Policy("mixed_bfloat16"))
    during = keras.mixed_precision.dtype_policy().name
    mixed_precision.set_policy(before)
    optimizer = mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.5), "dynamic")
    try:
        mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.5), 128)
    except ValueError as error:
        message = str(error)
    schedule = tf.keras.experimental.CosineDecay(0.5, 10)
    return float(scaled[0, 0]), same, during, type(optimizer).__name__, message, float(schedule(0))


def old_script():
    """Train as the public example scripts of that time did; return the mean loss of each epoch."""
    importlib.import_module("tensorflow.keras.layers")
    model, optimizer = dense(), tf.keras.optimizers.Adam(lr=0.05)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_loss = tf.keras.metrics.Mean(name="train_loss")

    @tf.function
    def train_step(images, labels):
        loss = loss_object(labels, model(images, training=True))
        gradients = optimizer.get_gradients(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss(loss)

    means = []
    for _ in range(5):
        train_loss.reset_states()
        for number in range(4):
            train_step(*Batches()[number])
        means.append(float(train_loss.result()))
    return means
