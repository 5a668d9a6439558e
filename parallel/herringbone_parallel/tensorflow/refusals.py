"""What Keras's loops offer and a model on several ranks cannot do, refused by name before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from herringbone_spec.errors import ParallelError

# What a mean over microbatches keeps: the mean over a batch is the mean of those of its equal parts.
_MEANS = ("sum_over_batch_size", "mean")


def refuse_compiled(model: Any, microbatches: int) -> None:
    """Raise `ParallelError` for an optimizer or a loss that needs more than this rank's gradients, or than a mean."""
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ParallelError(
            "compile: a LossScaleOptimizer looks for overflows in the gradients of one rank, and each would come to a"
            " scale of its own. Use the policy 'mixed_bfloat16', which needs no scale; or a fixed one, with"
            " compile(Adam(loss_scale_factor=1024), auto_scale_loss=False)"
        )
    if getattr(optimizer, "global_clipnorm", None) is not None:
        raise ParallelError(
            f"compile: global_clipnorm={optimizer.global_clipnorm} needs the gradients of all ranks, and each has those"
            " of its own variables. Use clipnorm, which is per variable, or clipvalue"
        )
    if microbatches == 1:
        return
    for loss in _leaves(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in _MEANS:
            raise ParallelError(
                f"compile: {type(loss).__name__}(reduction={reduction!r}) of a batch is not the mean over its"
                " microbatches. Use 'sum_over_batch_size', and scale the learning rate; or one microbatch"
            )


def refuse_callbacks(callbacks: Any) -> None:
    """Raise `ParallelError` for a callback that reads or writes the model of one rank as if it were whole."""
    for callback in _each(callbacks):
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


def _each(callbacks: Any) -> Sequence[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks  # type: ignore[no-any-return]
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, list | tuple) else [callbacks]


def _leaves(losses: Any) -> Iterator[Any]:
    yield from tf.nest.flatten(losses)
