"""A model that is split over ranks, as a whole: one SavedModel, or one file of weights, which plain Keras loads too.

The first rank of the first pipeline writes and reads; for that long it holds all variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import WORLD, RankType
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.communication import allgather, recv_from, send
from herringbone_parallel.tensorflow.model_parallel.placement.trace import recorder, variable_of
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import PeerFailedError

if TYPE_CHECKING:
    from herringbone_parallel.tensorflow.model_parallel.model import DistributedModel

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
    _ready("save_model")
    specs = state.get().signature
    on_whole_model(model, lambda variables: _write(model, variables, specs, save_path), f"save_model({save_path!r})")


def save_weights(model: DistributedModel, path: str, *args: Any, **how: Any) -> None:
    """Write the weights of the whole model into one file of Keras's, which a plain model of the same layers loads.

        model.save_weights("/opt/ml/model/last.weights.h5")     # every rank; the first one writes
        net.load_weights("/opt/ml/model/last.weights.h5")       # the model that was wrapped, or the same class

    Raises `ParallelError` as `save_model` does, and for a path that is not a file of Keras's.
    """
    _refuse_checkpoint(path)
    _ready("save_weights")

    def write(_: list[Any]) -> None:
        with _unwrapped(model) as bare:
            keras.Model.save_weights(bare, path, *args, **how)

    on_whole_model(model, write, f"save_weights({path!r})")


def load_weights(model: DistributedModel, path: str, *args: Any, **how: Any) -> None:
    """Read weights from a file of Keras's on the first rank, and give every rank its own.

        model.load_weights("bert.weights.h5")

    Before the first step there is nothing to load into: then they are loaded in that step. Raises `ParallelError` on
    every rank for a file that is not there, and for one that Keras cannot load.
    """
    _refuse_checkpoint(path)
    here = state.get()
    if recorder() is not None:
        raise ParallelError("load_weights inside a step: call it before or after")
    there = here.rank != 0 or Path(path).exists()
    if not (there if here.transport is None else all(allgather(there, WORLD))):
        raise ParallelError(f"load_weights({path!r}): there is no such file on the first rank's host")

    def read(_: list[Any]) -> None:
        with _unwrapped(model) as bare:
            keras.Model.load_weights(bare, path, *args, **how)

    def load() -> None:
        on_whole_model(model, read, f"load_weights({path!r})", changes=True)

    if here.partitioned:
        load()
    else:
        here.hooks.append(load)


def on_whole_model(model: DistributedModel, run: Callable[[list[Any]], None], what: str, changes: bool = False) -> None:
    """Run a function on the first rank while it holds all variables; with `changes` each rank gets its own back.

    Every rank calls, and returns when it is done; without `changes` those of other replicas have nothing to do. The
    variables are in the order of `all_variables`. Raises `ParallelError` on every rank where the function fails; `what`
    says what was called.
    """
    here = state.get()
    first_pipeline = here.grid.group("P", 0)
    if not changes and here.rank not in first_pipeline:
        return
    variables = [variable_of(variable) for variable in model.all_variables()]
    if here.rank in first_pipeline[1:]:
        send(_values(variables, here), 0, RankType.WORLD_RANK)
    if here.rank == 0:
        lent: list[Any] = []
        try:
            failure = _on_everything(variables, first_pipeline[1:], lent, run)
            for rank in range(1, here.grid.world_size) if changes else first_pipeline[1:]:
                partition = here.grid.coordinates(rank)["P"]
                theirs = _values(variables, here, partition) if changes and failure is None else {}
                send((failure, theirs), rank, RankType.WORLD_RANK)
        finally:
            for variable in lent:
                tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
    else:
        failure, values = recv_from(0, RankType.WORLD_RANK)
        for place, value in values.items():
            variables[place].assign(value)
    if failure is not None:
        raise ParallelError(f"{what}: {failure}")


def _on_everything(
    variables: list[Any], others: Sequence[int], lent: list[Any], run: Callable[[list[Any]], None]
) -> str | None:
    """Return what went wrong, None if nothing did; variables that others lend a value are added to `lent`."""
    try:
        for rank in others:
            for place, value in recv_from(rank, RankType.WORLD_RANK).items():
                lent.append(variables[place])
                variables[place].assign(value)
        run(variables)
    except PeerFailedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        return f"{type(error).__name__}: {error}"
    return None


def _values(variables: list[Any], here: state.State, partition: int | None = None) -> dict[int, np.ndarray[Any, Any]]:
    """Return what a partition holds, this rank's own or another that is given, by the place in `all_variables`.

    Another rank is also given what every rank has.
    """
    owners = (here.pp_rank,) if partition is None else (partition, None)
    return {place: variable.numpy() for place, variable in enumerate(variables) if here.owner_of(variable) in owners}


def _ready(what: str) -> None:
    here = state.get()
    if recorder() is not None or not here.partitioned or here.signature is None:
        raise ParallelError(
            f"{what}: call it after the first step and outside of one; before, nobody knows what the model is called"
            " with, and who holds what"
        )


def _refuse_checkpoint(path: str) -> None:
    if not path.endswith((".h5", ".hdf5")):
        raise ParallelError(
            f"{path}: the weights of a model on several ranks are a file of Keras's, whose name ends in .weights.h5."
            " For a checkpoint of TensorFlow's there is smp.CheckpointManager"
        )


@contextmanager
def _unwrapped(model: DistributedModel) -> Iterator[Any]:
    """Yield the model that was given, without its optimizer, which has slots for this rank's variables only."""
    whole = getattr(model, "module", model)
    optimizer = vars(whole).pop("optimizer", None)
    try:
        yield whole
    finally:
        if optimizer is not None:
            vars(whole)["optimizer"] = optimizer


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
