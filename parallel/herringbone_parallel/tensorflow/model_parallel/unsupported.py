"""Refuses, by name and before training starts, features of Keras that a model on several ranks does not support."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.patches import Patches, defining_class

# The mean over a batch is the mean of the means over its equal parts. No other reduction has this property.
_MEANS = ("sum_over_batch_size", "mean")
# Losses of Keras that compare the samples of a batch, or join them in one figure, by the names of their functions.
_OVER_THE_BATCH = frozenset({"circle", "dice", "tversky"})
# Methods and properties that Keras asks the outermost model for, besides those of training.
_OF_THE_WHOLE = frozenset(
    {
        *("save", "save_weights", "load_weights", "export", "losses", "weights", "variables"),
        *("trainable_variables", "trainable_weights", "non_trainable_variables", "non_trainable_weights"),
    }
)


def refuse_compiled(model: Any, microbatches: int) -> None:
    """Raise `ParallelError` for an optimizer that needs all ranks' gradients, and for a loss that is no mean."""
    refuse_dynamic_scale(model.optimizer, "compile", ", with compile(..., auto_scale_loss=False)")
    refuse_global_norm(model.optimizer, "compile")
    if microbatches == 1:
        return
    for loss in tf.nest.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in _MEANS:
            raise ParallelError(
                f"compile: {type(loss).__name__}(reduction={reduction!r}) of a batch is not the mean over its"
                " microbatches. Use 'sum_over_batch_size', and scale the learning rate; or one microbatch"
            )


def refuse_update(update: str) -> NoReturn:
    """Raise `ParallelError` for an update of weights inside a step."""
    raise ParallelError(
        f"{update} inside a function under @smp.step, which runs once for each microbatch: return the gradients, and"
        " apply their means after the step: optimizer.apply_gradients(zip([g.accumulate() for g in gradients],"
        " model.trainable_variables))"
    )


def refuse_dynamic_scale(optimizer: Any, caller: str, advice: str = "") -> None:
    """Raise `ParallelError` for an optimizer that changes its scale when it finds an overflow."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ParallelError(
            f"{caller}: a LossScaleOptimizer looks for overflows in the gradients of one rank, and each would come to a"
            " scale of its own. Use the policy 'mixed_bfloat16', which needs no scale; or a fixed one,"
            f" keras.optimizers.Adam(loss_scale_factor=1024){advice}"
        )


def refuse_global_norm(optimizer: Any, caller: str) -> None:
    """Raise `ParallelError` for an optimizer that clips by a norm over all gradients."""
    norm = getattr(optimizer, "global_clipnorm", None)
    if norm is not None:
        raise ParallelError(
            f"{caller}: global_clipnorm={norm} needs the gradients of all ranks, and each has those of its own"
            " variables. Use clipnorm, which is per variable, or clipvalue; or tf.clip_by_global_norm inside of the"
            " step, which clips the gradients of a microbatch"
        )


def watch_optimizers(patches: Patches) -> None:
    """Make every optimizer refuse a global norm when it is applied; lasts until `patches` are undone."""
    # A script without `compile` never reaches `refuse_compiled`.
    base = defining_class(keras.optimizers.Optimizer, "apply")
    apply = base.apply

    @functools.wraps(apply)
    def checked(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        refuse_global_norm(self, f"{type(self).__name__}.apply")
        return apply(self, grads, trainable_variables)

    patches.set(base, "apply", checked)


def refuse_overridden(model: Any) -> None:
    """Raise `ParallelError` for a model to wrap whose own methods the wrapper would not call."""
    trainers = {defining_class(keras.Model, name) for name in ("train_step", "compute_loss")}
    names = {name for trainer in trainers for name in vars(trainer) if not name.startswith("_")} | _OF_THE_WHOLE
    # `compile` sets an attribute of this name.
    names -= {"loss"}
    # A method may also have been set on the object.
    owners = [vars(owner) for owner in type(model).__mro__ if owner.__module__.partition(".")[0] != "keras"]
    own = [name for name in names if any(name in owner for owner in owners)]
    own += [name for name in names if callable(vars(model).get(name))]
    if own:
        name = type(model).__name__
        raise ParallelError(
            f"smp.DistributedModel({name}(...)): {name} has {', '.join(sorted(own))} of its own, and of a wrapped"
            f" model only call() is used. Write `class {name}(smp.DistributedModel)` with the layers in it, or leave"
            " that out"
        )


def refuse_stateful(model: Any, microbatches: int) -> None:
    """Raise `ParallelError` for layers that keep a state for each sample, where a batch is several microbatches."""
    name = next((layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)), None)
    if microbatches > 1 and name is not None:
        raise ParallelError(
            f"layer {name!r} is stateful: it keeps a state for each sample of a batch, and a step sees the"
            f" {microbatches} microbatches of a batch one by one. Use microbatches: 1, or leave out stateful=True"
        )


def watch_norms(patches: Patches, is_tracing: Callable[[], bool]) -> None:
    """Make TensorFlow's norms over lists refuse the gradients of one rank; lasts until `patches` are undone.

    Inside a step, where `is_tracing` is true, the gradients of all ranks are there.
    """
    for owner, name in (
        (tf, "clip_by_global_norm"),
        (tf.linalg, "global_norm"),
        (tf.compat.v1, "clip_by_global_norm"),
        (tf.compat.v1, "global_norm"),
        (tf.compat.v1.linalg, "global_norm"),
    ):
        patches.set(owner, name, _norm_in_steps(getattr(owner, name), name, is_tracing))


def _norm_in_steps(norm: Callable[..., Any], name: str, is_tracing: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(norm)
    def checked(t_list: Any, *args: Any, **kwargs: Any) -> Any:
        # The second argument after the list is `use_norm`: a norm that the script knows from elsewhere.
        if not is_tracing() and len(args) < 2 and kwargs.get("use_norm") is None:
            raise ParallelError(
                f"{name} outside of a step: a rank has the gradients of its own variables only, so the norm would be"
                " another one on each rank. Take it inside of the step, for the gradients of a microbatch; or add up"
                " the ranks' squares, squares = smp.allgather(float(sum(tf.reduce_sum(g * g) for g in gradients)),"
                " smp.PP_GROUP), outside of a tf.function, and clip with use_norm=tf.constant(sum(squares) ** 0.5)"
            )
        return norm(t_list, *args, **kwargs)

    return checked


@contextmanager
def means_only(losses: Any, microbatches: int) -> Iterator[None]:
    """Raise `ParallelError` in the `with` block for a loss that is no mean over samples; `losses` are the model's."""
    patches = Patches()
    # A class may override `__call__`, too.
    callers = {
        defining_class(type(loss), "__call__")
        for loss in tf.nest.flatten(losses)
        if isinstance(loss, keras.losses.Loss)
    }
    for owner in {keras.losses.Loss, *callers} if microbatches > 1 else ():
        patches.set(owner, "__call__", _checked_for_mean(owner.__call__))
    try:
        yield
    finally:
        patches.undo()


def _checked_for_mean(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def checked(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        function = getattr(loss, "fn", loss)
        # A class of the script's own may change the `call` of one of Keras's, and keep its function.
        modules = {type(loss).__module__, getattr(function, "__module__", type(function).__module__)}
        of_keras = all(module.startswith("keras.") for module in modules)
        # Keras's other losses are means, so spare the memory that four samples of a large vocabulary take.
        if not of_keras or getattr(function, "__name__", "") in _OVER_THE_BATCH:
            _refuse_other_than_mean(loss, functools.partial(call, loss), y_true, y_pred)
        return call(loss, y_true, y_pred, sample_weight)

    return checked


def _refuse_other_than_mean(loss: Any, call: Callable[[Any, Any], Any], y_true: Any, y_pred: Any) -> None:
    """Try a loss on four samples and on their halves: the mean of the halves' losses is to be the loss of the whole."""
    last = max(1, (tf.nest.flatten(y_pred)[0].shape[-1] or 0) - 1)
    # A loss may compare samples of two classes, and weigh, or leave out, those of one. 0 and 1 are classes of each
    # classification of several.
    trials = [_is_mean(call, y_true, y_pred, classes) for classes in (None, (0, 1, 0, 1), (0, last, last, last))]
    if trials.count(None) == len(trials):
        # A value per sample becomes Keras's mean. A scalar may be anything.
        values = call if type(loss).call is keras.losses.Loss.call else loss.call
        trials = [bool(values(y_true, y_pred).shape.rank)]
    if False in trials:
        raise ParallelError(
            f"fit: the loss {loss.name!r} of a batch is not the mean over its microbatches: it adds up samples,"
            " compares them with each other, or draws random numbers. Return one value per sample, or their mean,"
            " and scale the learning rate (Keras's Dice and Tversky do so with axis=...); or use microbatches: 1"
        )


def _is_mean(call: Callable[[Any, Any], Any], y_true: Any, y_pred: Any, classes: Sequence[int] | None) -> bool | None:
    """Say whether a loss of samples with these labels is the mean of the losses of their halves; None if it fails.

    Without `classes`, labels are random numbers, and 0 for integers.
    """
    values = np.random.RandomState(0)

    def sample_of(tensor: Any, classes: Sequence[int] | None = None) -> Any:
        shape = [4, *(extent or 2 for extent in tensor.shape[1:])]
        if classes is not None:
            drawn = np.broadcast_to(np.reshape(classes, [4, *[1] * (len(shape) - 1)]), shape)
        else:
            drawn = values.uniform(0.1, 0.9, shape) if tensor.dtype.is_floating else np.zeros(shape)
        return tf.cast(drawn, tensor.dtype)

    try:
        with tf.init_scope():
            labels = tf.nest.map_structure(functools.partial(sample_of, classes=classes), y_true)
            samples = (labels, tf.nest.map_structure(sample_of, y_pred))
            halves = [tf.nest.map_structure(lambda whole, n=n: whole[n : n + 2], samples) for n in (0, 2)]
            whole, *parts = [float(call(*sample)) for sample in (samples, *halves)]
    except Exception:  # noqa: BLE001  a loss of the script's own may fail in any way on other samples than its own
        return None
    return bool(np.isclose(whole, sum(parts) / 2, rtol=1e-3, atol=1e-5, equal_nan=True))


def refuse_callbacks(callbacks: Any) -> None:
    """Raise `ParallelError` for a callback that reads or writes the model of one rank as if it were whole."""
    for callback in as_list(callbacks):
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only:
            raise ParallelError(
                f"{name}({callback.filepath!r}) saves the model of one rank: add save_weights_only=True, with a path"
                " that ends in .weights.h5, and call model.save_model(folder) after fit"
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ParallelError(
                f"{name} saves the optimizer of one rank: use smp.CheckpointManager, with"
                " keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: manager.save())"
            )
        for frequency in ("histogram_freq", "embeddings_freq"):
            if isinstance(callback, keras.callbacks.TensorBoard) and getattr(callback, frequency):
                raise ParallelError(f"{name}({frequency}=...) reads weights that other ranks hold: leave it at 0")


def as_list(callbacks: Any) -> Sequence[Any]:
    """Return the callbacks that a script gives to `fit`."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks  # type: ignore[no-any-return]
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, list | tuple) else [callbacks]
