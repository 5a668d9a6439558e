"""A model that is split over ranks, written whole: one SavedModel, which plain TensorFlow and Keras load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.core.groups import RankType
from herringbone_parallel.tensorflow import state
from herringbone_parallel.tensorflow.communication import recv_from, send
from herringbone_parallel.tensorflow.trace import recorder, variable_of
from herringbone_spec.errors import ParallelError

if TYPE_CHECKING:
    from herringbone_parallel.tensorflow.model import DistributedModel

# The ways in, by the names that `keras.Model.export` and TensorFlow Serving know.
_ENDPOINT, _SIGNATURE = "serve", "serving_default"


def input_specs(args: tuple[Any, ...]) -> Any:
    """Return what a model was called with as shapes for any batch; Keras casts floating inputs by itself.

        input_specs((images,))      # [TensorSpec((None, 28, 28, 1), float32)]

    None stands for an argument that is no tensor.
    """

    def spec(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor | tf.Variable | np.ndarray):
            return None
        dtype = tf.as_dtype(leaf.dtype)
        return tf.TensorSpec([None, *leaf.shape[1:]], keras.config.floatx() if dtype.is_floating else dtype)

    return [tf.nest.map_structure(spec, arg) for arg in args]


def save_model(model: DistributedModel, save_path: str) -> None:
    """Write the whole model as a SavedModel: every rank calls it, the first rank of the first pipeline writes.

        model.save_model("/opt/ml/model/1")
        keras.layers.TFSMLayer("/opt/ml/model/1", call_endpoint="serve")        # anywhere, without this library

    It predicts: dropout is off, and it takes batches of any size. All ranks return when it is written. The writing rank
    holds all variables for that long. Raises `ParallelError` on every rank where writing fails, and before the first
    step. Source: SMP v1, `DistributedModel.save_model`.
    """
    here = state.get()
    if recorder() is not None or not here.partitioned or here.signature is None:
        raise ParallelError(
            "save_model: call it after the first step and outside of one; before, nobody knows what the model is called"
            " with, and who holds what"
        )
    if here.rank not in here.grid.group("P", 0):
        # Another replica of the same model.
        return
    if here.pp_rank != 0:
        send(_values(model, here), 0, RankType.PP_RANK)
        failure = recv_from(0, RankType.PP_RANK)
    else:
        failure = _gather_and_write(model, here, save_path)
        for rank in range(1, len(here.pipeline)):
            send(failure, rank, RankType.PP_RANK)
    if failure is not None:
        raise ParallelError(f"save_model({save_path!r}): {failure}")


def _values(model: DistributedModel, here: state.State) -> dict[int, np.ndarray[Any, Any]]:
    """Return what this rank holds, by the place in `all_variables`, which is the same on every rank."""
    everything = enumerate(model.all_variables())
    return {
        place: np.asarray(variable.value) for place, variable in everything if here.owner_of(variable) == here.pp_rank
    }


def _gather_and_write(model: DistributedModel, here: state.State, path: str) -> str | None:
    """Return what went wrong; None if nothing did. The others wait for it."""
    lent: list[Any] = []
    variables = model.all_variables()
    try:
        for rank in range(1, len(here.pipeline)):
            for place, value in recv_from(rank, RankType.PP_RANK).items():
                variable = variable_of(variables[place])
                lent.append(variable)
                variable.assign(value)
        _write(model, [variable_of(variable) for variable in variables], here.signature, path)
    except ParallelError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        return f"{type(error).__name__}: {error}"
    finally:
        for variable in lent:
            tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
    return None


def _write(model: DistributedModel, variables: list[Any], specs: Any, path: str) -> None:
    def predict(*args: Any) -> Any:
        # Not through the door that refuses calls outside of a step: here the model is whole.
        return keras.Model.__call__(model, *args, **_training(model))

    holder = tf.Module()
    holder.held = variables
    given = [spec for spec in specs if not _is_empty(spec)]
    holder.serve = tf.function(predict, input_signature=given)
    names = ["inputs", *(f"inputs_{number}" for number in range(1, len(tf.nest.flatten(given))))]
    flat = [
        tf.TensorSpec(spec.shape, spec.dtype, name) for spec, name in zip(tf.nest.flatten(given), names, strict=True)
    ]

    def signature(*leaves: Any) -> dict[str, Any]:
        outputs = tf.nest.flatten(holder.serve(*tf.nest.pack_sequence_as(given, leaves)))
        return {f"output_{number}": output for number, output in enumerate(outputs)}

    serving = tf.function(signature, input_signature=flat).get_concrete_function()
    tf.saved_model.save(holder, path, signatures={_SIGNATURE: serving})


def _training(model: DistributedModel) -> dict[str, bool]:
    """Return `training=False` for a model whose `call` asks."""
    import inspect

    return {"training": False} if "training" in inspect.signature(model.call).parameters else {}


def _is_empty(spec: Any) -> bool:
    return all(leaf is None for leaf in tf.nest.flatten(spec))
