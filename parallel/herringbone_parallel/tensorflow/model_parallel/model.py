"""`smp.DistributedModel`: a Keras model whose layers are on several ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.checkpoint.saving import (
    input_specs,
    load_weights,
    save_model,
    save_weights,
)
from herringbone_parallel.tensorflow.model_parallel.placement.trace import recorder
from herringbone_parallel.tensorflow.model_parallel.training.training import Trainer

Hook = TypeVar("Hook", bound=Callable[[], Any])


class DistributedModel(Trainer):
    """A Keras model that is split over the ranks of a pipeline; it can be called inside of `@smp.step` only.

        class Net(smp.DistributedModel):
            def call(self, images, training=None):
                with smp.partition(0):
                    ...

        model = smp.DistributedModel(keras.Sequential([...]))

    Use it as the base class, or give it a model of any kind, or `inputs` and `outputs` as to `keras.Model`. After the
    first step, `variables` and its like are this rank's own; inside of a step they are all. Source: SMP v1,
    `smp.DistributedModel` for TensorFlow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        here = state.get()
        if here.model is not None:
            raise ParallelError(
                "a second smp.DistributedModel: there is one in a script. Make one model whose call() uses both, or"
                " leave the other a plain Keras model, which every rank computes for itself."
            )
        module = _given(args, kwargs)
        super().__init__(**kwargs)
        if module is not None:
            self.module = module
            # What there is to build is the module's.
            self.built = True
        here.model = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recorder() is None:
            raise ParallelError(
                f"{self.name} was called outside of a step: its layers are on several ranks, which work together inside"
                " of a function under @smp.step only. Write one for predictions too."
            )
        here = state.get()
        if here.signature is None:
            here.signature = input_specs(args)
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Any, training: Any = None) -> Any:  # noqa: ARG002 - Keras hands it on to inner layers
        """Call the model that was given; subclasses have their own."""
        if not hasattr(self, "module"):
            raise ParallelError(f"{type(self).__name__} has no call(): write one, or give smp.DistributedModel a model")
        return self.module(inputs)

    @property
    def variables(self) -> list[Any]:
        return _own(super().variables)

    @property
    def trainable_variables(self) -> list[Any]:
        return _own(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return _own(super().non_trainable_variables)

    @property
    def weights(self) -> list[Any]:
        return _own(super().weights)

    @property
    def trainable_weights(self) -> list[Any]:
        return _own(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Any]:
        return _own(super().non_trainable_weights)

    def save_model(self, save_path: str = "/opt/ml/model") -> None:
        """Write the whole model as a SavedModel, which plain Keras loads; see `saving.save_model`."""
        save_model(self, save_path)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - Keras's, which say how
        """Write the whole model into a folder, as `save_model` does. Raises `ParallelError` for a file of Keras's."""
        path = os.fspath(filepath)
        if path.endswith((".keras", ".h5", ".hdf5")):
            raise ParallelError(
                f"{path}: the layers of {self.name} are on several ranks, and Keras would write those of one. Save a"
                " SavedModel folder: model.save_model(folder)"
            )
        self.save_model(path)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Write the weights of the whole model into one file of Keras's; see `saving.save_weights`."""
        save_weights(self, os.fspath(filepath), *args, **kwargs)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Read the weights of the whole model from one file of Keras's; see `saving.load_weights`."""
        load_weights(self, os.fspath(filepath), *args, **kwargs)

    def all_variables(self) -> list[Any]:
        """Return the variables of all ranks; those of others have a shape and no value."""
        return list(keras.Model.variables.fget(self))


def _own(variables: Sequence[Any]) -> list[Any]:
    """Return those that this rank holds; inside of a step, where all ranks trace the same, all of them."""
    if recorder() is not None or not state.is_initialized():
        return list(variables)
    here = state.get()
    return [variable for variable in variables if here.is_local(variable)]


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the model to wrap, if there is one, from the arguments of the constructor."""
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

    That is in the first step. Raises `ParallelError` when it is over. Source: SMP v1 for TensorFlow.
    """
    here = state.get()
    if here.partitioned:
        raise ParallelError("smp.register_post_partition_hook: the model has been partitioned already; register before")
    here.hooks.append(hook)
    return hook
