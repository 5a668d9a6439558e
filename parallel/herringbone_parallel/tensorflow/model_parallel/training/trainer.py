"""Keras's `fit`, `evaluate` and `predict` over the ranks of a pipeline: each batch is one step.

Every rank runs Keras's own loop over the same batches, with the same callbacks. Losses and outputs come back on every
rank, so that all ranks update the same metrics and take the same decisions. Each rank applies the gradients of its own
variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.callbacks import CSVLogger

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import WORLD
from herringbone_parallel.core.pipeline.microbatch import most_microbatches
from herringbone_parallel.core.pipeline.split import Splitter
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.batches import SameBatches
from herringbone_parallel.tensorflow.model_parallel.communication import allgather
from herringbone_parallel.tensorflow.model_parallel.output import StepOutput
from herringbone_parallel.tensorflow.model_parallel.split import is_tensor, pieces
from herringbone_parallel.tensorflow.model_parallel.step import Step
from herringbone_parallel.tensorflow.model_parallel.training.loss_terms import refuse_sums
from herringbone_parallel.tensorflow.model_parallel.unsupported import (
    as_list,
    means_only,
    refuse_callbacks,
    refuse_compiled,
)


class Trainer(keras.Model):
    """A model whose `fit`, `evaluate`, `predict` and similar methods run steps.

        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(images, labels, batch_size=64, epochs=3, validation_split=0.1, verbose=2)

    A batch that `microbatches` does not divide, such as the last one, is cut into the largest number of microbatches
    that does. Raises `ParallelError` for settings and callbacks that do not support several ranks, and when the ranks
    of a pipeline get different batches.
    """

    # The loops of Keras create these functions, and `compile` drops them.
    train_function: Any
    test_function: Any
    predict_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = _Steps(self)

    def compile(self, *args: Any, jit_compile: Any = "auto", **kwargs: Any) -> None:
        if jit_compile is True:
            raise ParallelError("compile(jit_compile=True): XLA cannot leave for another rank; leave it out")
        # Keras's default compiles with XLA on a GPU, and a step has to leave the graph for another rank.
        super().compile(*args, jit_compile=False, **kwargs)
        refuse_compiled(self, state.get().settings.microbatches)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Train, as `keras.Model.fit` does; every rank calls it."""
        refuse_callbacks(callbacks)
        callbacks = _of_this_rank(callbacks)
        if kwargs.get("shuffle", True):
            self._steps.same.agree_on_seed()
        return super().fit(x, y, batch_size, epochs, verbose, callbacks, **kwargs)

    def train_step(self, data: Any) -> Any:
        """Train on a batch; see `keras.Model.train_step`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        gradients, loss, outputs = self._steps.run(self._steps.train, x, y, sample_weight)
        self._loss_tracker.update_state(loss.reduce_mean(), sample_weight=_extent(x))
        self._apply(gradients)
        return self.compute_metrics(x, y, _merged(*outputs), sample_weight=sample_weight)

    def test_step(self, data: Any) -> Any:
        """Compute losses and metrics of a batch; see `keras.Model.test_step`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        loss, outputs = self._steps.run(self._steps.test, x, y, sample_weight)
        self._loss_tracker.update_state(loss.reduce_mean(), sample_weight=_extent(x))
        return self.compute_metrics(x, y, _merged(*outputs), sample_weight=sample_weight)

    def predict_step(self, data: Any) -> Any:
        """Return the model's outputs for a batch; see `keras.Model.predict_step`."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return _merged(*self._steps.run(self._steps.predict, x))

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is None or force:
            state.get().compilation += 1
            self.train_function = self._over_an_iterator(self.train_step)
        self._steps.same.compare_next()

    def make_test_function(self, force: bool = False) -> None:
        if self.test_function is None or force:
            state.get().compilation += 1
            self.test_function = self._over_an_iterator(self.test_step)
        self._steps.same.compare_next()

    def make_predict_function(self, force: bool = False) -> None:
        if self.predict_function is None or force:
            state.get().compilation += 1
            run = self._on_one_batch(self.predict_step)

            def run_several(batches: Sequence[Any]) -> Any:
                outputs = [run(batch) for batch in batches]
                return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)

            self.predict_function = run_several
        self._steps.same.compare_next()

    def _over_an_iterator(self, run_step: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Any]:
        """Return a function that Keras calls with an iterator, for `steps_per_execution` batches at a time."""
        run = self._on_one_batch(run_step)

        def run_next(iterator: Iterator[Any]) -> Any:
            logs = run(next(iterator))
            for _, data in zip(range(self.steps_per_execution - 1), iterator, strict=False):
                logs = run(data)
            return logs

        return run_next

    def _on_one_batch(self, run_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a step with its updates as one function.

        Keras's own function takes an iterator, and the length of the last batch is unknown while it is traced.
        """
        run = tf.autograph.experimental.do_not_convert(run_step)
        run = run if self.run_eagerly else tf.function(run)

        def run_known(data: Any) -> Any:
            # Keras's adapter for generators yields an empty Optional for labels or weights that are absent.
            data = tf.nest.map_structure(
                lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
            )
            # Outside of the graph, where a batch has values; `compare` returns at once unless a loop has just begun.
            self._steps.same.compare(data)
            try:
                return run(data)
            except (StopIteration, tf.errors.OutOfRangeError) as error:
                # Keras would take it for the end of the data.
                raise ParallelError(f"{self.name}: a step of a batch ended with {type(error).__name__}") from error

        return run_known

    def _apply(self, gradients: Mapping[int, StepOutput]) -> None:
        """Apply the gradients of this rank's variables; the keys are the numbers of variables in the whole model."""
        numbers = _variable_numbers(self)
        pairs = [(gradients.get(numbers[id(variable)]), variable) for variable in self.trainable_variables]
        if any(gradient is not None for gradient, _ in pairs):
            self.optimizer.apply_gradients(
                [(gradient and gradient.accumulate(), variable) for gradient, variable in pairs]
            )
        else:
            # A rank without variables must count the step, too: schedules and callbacks read the count on every rank.
            self.optimizer.iterations.assign_add(1)


class _Steps:
    """The steps of one model: train, test and predict."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.same = SameBatches()
        self.train, self.test, self.predict = _step(self._train), _step(self._test), _step(self._predict)

    def run(self, step: Step, *args: Any) -> Any:
        """Run a step with the largest allowed number of microbatches that divides this batch."""
        most, extent = state.get().settings.microbatches, _extent(args[0])
        return step(args, {}, most if extent is None else most_microbatches(extent, most))

    def _train(self, x: Any, y: Any, sample_weight: Any) -> Any:
        model = self._model
        loss, outputs = self._losses(x, y, sample_weight, training=True)
        variables = model.trainable_variables
        computed = tf.gradients(model.optimizer.scale_loss(loss), variables) if variables else []
        numbers = _variable_numbers(model)
        gradients = {
            numbers[id(variable)]: gradient
            for variable, gradient in zip(variables, computed, strict=True)
            if gradient is not None
        }
        if variables and not gradients:
            raise ParallelError(f"fit: the loss of {model.name} depends on none of its {len(variables)} variables")
        return gradients, loss, outputs

    def _test(self, x: Any, y: Any, sample_weight: Any) -> Any:
        return self._losses(x, y, sample_weight, training=False)

    def _predict(self, x: Any) -> Any:
        return _with_masks(self._call(x, training=False))

    def _losses(self, x: Any, y: Any, sample_weight: Any, *, training: bool) -> Any:
        model = self._model
        outputs = self._call(x, training=training)
        training_arg = {"training": training} if model._compute_loss_has_training_arg else {}
        microbatches = state.get().settings.microbatches
        with means_only(model.loss, microbatches):
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, **training_arg)
        if microbatches > 1:
            refuse_sums(loss, _extent(x))
        # Outputs travel to every rank, so return them only where metrics read them.
        wanted = model._compile_metrics is not None or type(model).compute_metrics is not keras.Model.compute_metrics
        return loss, _with_masks(outputs if wanted else ())

    def _call(self, x: Any, *, training: bool) -> Any:
        training_arg = {"training": training} if self._model._call_has_training_arg else {}
        return self._model(x, **training_arg)


def _step(function: Callable[..., Any]) -> Step:
    return Step(function, Splitter(function, (), {}, pieces), {"autograph": False})


def _of_this_rank(callbacks: Any) -> Any:
    """Return the callbacks without a `CSVLogger` whose file the first rank writes: all ranks have the same figures."""
    rank_state = state.get()
    if rank_state.transport is None:
        return callbacks
    listed = as_list(callbacks)
    files = {id(each): str(Path(each.filename).absolute()) for each in listed if isinstance(each, CSVLogger)}
    # Every rank calls: a script may give one rank alone a logger.
    of_the_first = allgather(list(files.values()), WORLD)[0]
    written = [each for each in listed if rank_state.rank and files.get(id(each)) in of_the_first]
    return [each for each in listed if each not in written] if written else callbacks


def _variable_numbers(model: Any) -> dict[int, int]:
    """Return the numbers of variables in the whole model, by their ids."""
    return {id(variable): number for number, variable in enumerate(model.all_variables())}


def _extent(x: Any) -> int | None:
    """Return the number of samples in a batch; None where a graph leaves it open."""
    first = next((leaf for leaf in leaves_of(x) if is_tensor(leaf)), None)
    # The step refuses a batch without dense tensors by name.
    return None if first is None else first.shape[0]


def _with_masks(outputs: Any) -> tuple[Any, list[Any]]:
    """Return outputs with their masks."""
    leaves = leaves_of(outputs)
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            raise ParallelError(
                f"the model's call returned {leaf!r} among its outputs: fit and predict take tensors only"
            )
    # Keras keeps a mask in an attribute of the tensor, which does not travel to other ranks.
    return outputs, [getattr(leaf, "_keras_mask", None) for leaf in leaves]


def _merged(outputs: Any, masks: Sequence[Any]) -> Any:
    """Return the outputs of the whole batch."""
    remaining = iter(masks)

    def merge(leaf: Any) -> Any:
        mask = next(remaining)
        # A scalar per microbatch has no axis to join along.
        merged = leaf.merge() if leaf.outputs[0].shape.rank else leaf.reduce_mean()
        if isinstance(mask, StepOutput):
            merged._keras_mask = mask.merge()
        return merged

    return replace_leaves(outputs, merge)
