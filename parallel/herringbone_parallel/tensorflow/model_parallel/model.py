"""`smp.DistributedModel`: a Keras model whose layers are on several ranks."""

from __future__ import annotations

import math
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from herringbone_contract.errors import ParallelError
from herringbone_parallel.job_folders import model_dir
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.batches import of_pipeline
from herringbone_parallel.tensorflow.model_parallel.checkpoint.saving import (
    input_specs,
    load_weights,
    save_model,
    save_weights,
)
from herringbone_parallel.tensorflow.model_parallel.training.trainer import Trainer
from herringbone_parallel.tensorflow.model_parallel.unsupported import refuse_overridden, refuse_stateful

Hook = TypeVar("Hook", bound=Callable[[], Any])


class DistributedModel(Trainer):
    """A Keras model that is split over the ranks of a pipeline; call it inside `@smp.step` only.

        class Net(smp.DistributedModel):
            def call(self, images, training=None):
                with smp.partition(0):
                    ...

        model = smp.DistributedModel(keras.Sequential([...]))

    Use it as the base class, or give it a model of any kind, or `inputs` and `outputs` as to `keras.Model`. After the
    first step, `variables` and similar properties list the variables of this rank; inside a step they list all
    variables. Source: SMP v1, `smp.DistributedModel` for TensorFlow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rank_state = state.get()
        if rank_state.model is not None:
            raise ParallelError(
                "a second smp.DistributedModel: a script may have one. Make one model whose call() uses both, or"
                " leave the other a plain Keras model, which every rank computes for itself."
            )
        module = _wrapped_model(args, kwargs)
        super().__init__(**kwargs)
        if module is not None:
            refuse_overridden(module)
            self.module = module
            # Keras names losses and metrics of several outputs by them, and finds those given by name.
            self.output_names = getattr(module, "output_names", None)
            # Only the wrapped model has variables to build, and it builds them in its own call.
            self.built = True
        rank_state.model = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not state.is_tracing():
            raise ParallelError(
                f"{self.name} was called outside of a step: its layers are on several ranks, which work together inside"
                " of a function under @smp.step only. Write one for predictions too."
            )
        rank_state = state.get()
        refuse_stateful(self, rank_state.settings.microbatches)
        if rank_state.signature is None:
            rank_state.signature = input_specs(args)
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Any, training: Any = None) -> Any:  # noqa: ARG002 - Keras hands it on to inner layers
        """Call the wrapped model; subclasses override this method."""
        if not hasattr(self, "module"):
            raise ParallelError(f"{type(self).__name__} has no call(): write one, or give smp.DistributedModel a model")
        return self.module(inputs)

    @property
    def variables(self) -> list[Any]:
        return _local(super().variables)

    @property
    def trainable_variables(self) -> list[Any]:
        return _local(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return _local(super().non_trainable_variables)

    @property
    def weights(self) -> list[Any]:
        return _local(super().weights)

    @property
    def trainable_weights(self) -> list[Any]:
        return _local(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Any]:
        return _local(super().non_trainable_weights)

    def save_model(self, save_path: str | None = None) -> None:
        """Write the whole model as a SavedModel, by default in `SM_MODEL_DIR`; see `saving.save_model`."""
        save_model(self, str(model_dir()) if save_path is None else save_path)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - Keras's signature
        """Write the whole model into a folder, as `save_model` does; raises `ParallelError` for a Keras file."""
        path = os.fspath(filepath)
        if path.endswith((".keras", ".h5", ".hdf5")):
            raise ParallelError(
                f"{path}: the layers of {self.name} are on several ranks, and Keras would write those of one. Save a"
                " SavedModel folder: model.save_model(folder)"
            )
        self.save_model(path)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - Keras's signature
        """Refuse Keras's export, which calls the model on one rank."""
        raise ParallelError(
            f"{os.fspath(filepath)}: Keras would export the layers of one rank. Save a SavedModel folder, which has the"
            " same endpoints: model.save_model(folder)"
        )

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Write the weights of the whole model into one Keras file; see `saving.save_weights`."""
        save_weights(self, os.fspath(filepath), *args, **kwargs)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Read the weights of the whole model from one Keras file; see `saving.load_weights`."""
        load_weights(self, os.fspath(filepath), *args, **kwargs)

    def all_variables(self) -> list[Any]:
        """Return the variables of all ranks; variables of other ranks have a shape and no value."""
        return list(keras.Model.variables.fget(self))

    def count_params(self) -> int:
        """Return the number of parameters of the whole model."""
        return sum(math.prod(weight.shape) for weight in keras.Model.weights.fget(self))

    def get_weights(self) -> list[Any]:
        """Return the weights of the whole model; every rank of the pipeline calls it.

        Keras's own code, such as `EarlyStopping`, gets those that this rank holds.
        """
        rank_state = state.get()
        if not rank_state.partitioned or sys._getframe(1).f_globals.get("__name__", "").startswith("keras."):
            return super().get_weights()  # type: ignore[no-any-return]
        weights = keras.Model.weights.fget(self)
        own = {n: weight.numpy() for n, weight in enumerate(weights) if rank_state.is_local(weight)}
        held = ChainMap(*of_pipeline(own))
        return [held[n] for n in range(len(weights))]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the weights of the whole model, as `get_weights` returns them, or those that this rank holds."""
        everywhere: list[Any] = keras.Model.weights.fget(self)
        if len(weights) == len(everywhere):
            local = {id(variable) for variable in self.weights}
            weights = [value for variable, value in zip(everywhere, weights, strict=True) if id(variable) in local]
        super().set_weights(weights)


def _local(variables: Sequence[Any]) -> list[Any]:
    """Return the variables that this rank holds; inside a step, return all of them."""
    # Every rank traces the same graph, so the step function must see the same variables on all ranks.
    if state.is_tracing() or not state.is_initialized():
        return list(variables)
    rank_state = state.get()
    return [variable for variable in variables if rank_state.is_local(variable)]


def _wrapped_model(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the model to wrap from the arguments of the constructor; None for a subclass."""
    if len(args) == 1 and isinstance(args[0], keras.Model):
        return args[0]
    if "inputs" in kwargs and "outputs" in kwargs:
        return keras.Model(inputs=kwargs.pop("inputs"), outputs=kwargs.pop("outputs"))
    if len(args) == 2:
        return keras.Model(inputs=args[0], outputs=args[1])
    if args:
        raise ParallelError(f"smp.DistributedModel takes a keras.Model, or inputs and outputs, not {args!r}")
    return None


def register_post_partition_hook(hook: Hook) -> Hook:
    """Call a function, eagerly, once the model has been partitioned and this rank's variables have values.

        @smp.register_post_partition_hook
        def load_pretrained():
            ...

    That happens in the first step. Raises `ParallelError` after that step. Source: SMP v1 for TensorFlow.
    """
    rank_state = state.get()
    if rank_state.partitioned:
        raise ParallelError("smp.register_post_partition_hook: the model has been partitioned already; register before")
    rank_state.hooks.append(hook)
    return hook
