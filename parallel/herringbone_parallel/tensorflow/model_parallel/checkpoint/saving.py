"""Saves a model that is split over ranks as a whole: one SavedModel, or one file of weights, which plain Keras loads.

The first rank of the first pipeline writes and reads. While it does so, it holds all variables:

    [1] the other ranks of the first pipeline send their values
    [2] the first rank assigns them to its variables without memory, and runs Keras's own function
    [3] it sends each rank the result; when weights were read, also that rank's values
    [4] it frees the values of the other ranks
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import WORLD, RankType
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.communication import allgather, recv_from, send
from herringbone_parallel.tensorflow.model_parallel.placement.trace import fill, release, variable_of
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import PeerFailedError
from herringbone_parallel.tensorflow.model_parallel.state import SplitModel

# The name of the endpoint that TensorFlow Serving calls. The attribute `serve` below has the name that
# `keras.Model.export` gives it.
_SIGNATURE = "serving_default"


def input_specs(args: tuple[Any, ...]) -> Any:
    """Return the arguments of a model's call as shapes for a batch of any size; Keras casts floating inputs itself.

        input_specs((images,))      # [TensorSpec((None, 28, 28, 1), float32)]

    An argument that is no tensor becomes None.
    """

    def spec(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor | tf.Variable | np.ndarray):
            return None
        dtype = tf.as_dtype(leaf.dtype)
        return tf.TensorSpec([None, *leaf.shape[1:]], keras.config.floatx() if dtype.is_floating else dtype)

    return [tf.nest.map_structure(spec, arg) for arg in args]


def save_model(model: SplitModel, save_path: str) -> None:
    """Write the whole model as a SavedModel: every rank calls, and the first rank of the first pipeline writes.

        model.save_model(os.environ["SM_MODEL_DIR"] + "/1")
        keras.layers.TFSMLayer("model/1", call_endpoint="serve")        # anywhere, without this library

    The saved model predicts: dropout is off, and it takes batches of any size. All ranks return when it is written. The
    writing rank holds all variables for that long. Raises `ParallelError` on every rank when writing fails, and before
    the first step. Source: SMP v1, `DistributedModel.save_model`.
    """
    _require_partitioned("save_model")
    specs = state.get().signature
    on_whole_model(model, lambda variables: _write(model, variables, specs, save_path), f"save_model({save_path!r})")


def save_weights(model: SplitModel, path: str, *args: Any, **how: Any) -> None:
    """Write the weights of the whole model into one Keras file, which a plain model of the same layers loads.

        path = os.environ["SM_MODEL_DIR"] + "/last.weights.h5"
        model.save_weights(path)     # every rank; the first one writes
        net.load_weights(path)       # the model that was wrapped, or the same class

    Raises `ParallelError` as `save_model` does, and for a path without the ending of a Keras file.
    """
    _refuse_checkpoint(path)
    _require_partitioned("save_weights")

    def write(_: list[Any]) -> None:
        with _unwrapped(model) as plain:
            keras.Model.save_weights(plain, path, *args, **how)

    on_whole_model(model, write, f"save_weights({path!r})")


def load_weights(model: SplitModel, path: str, *args: Any, **how: Any) -> None:
    """Read weights from a Keras file on the first rank, and send every rank its own.

        model.load_weights("bert.weights.h5")

    Before the first step there are no variables to load into; the weights are then loaded in that step. Raises
    `ParallelError` on every rank for a missing file, and for one that Keras cannot load.
    """
    _refuse_checkpoint(path)
    rank_state = state.get()
    if state.is_tracing():
        raise ParallelError("load_weights inside a step: call it before or after")
    # Checked now although the file may be read in a later step: the error belongs to this line of the script.
    exists = rank_state.rank != 0 or Path(path).exists()
    if not (exists if rank_state.transport is None else all(allgather(exists, WORLD))):
        raise ParallelError(f"load_weights({path!r}): there is no such file on the first rank's host")

    def read(_: list[Any]) -> None:
        with _unwrapped(model) as plain:
            keras.Model.load_weights(plain, path, *args, **how)

    def load() -> None:
        on_whole_model(model, read, f"load_weights({path!r})", changes=True)

    if rank_state.partitioned:
        load()
    else:
        rank_state.hooks.append(load)


def on_whole_model(model: SplitModel, run: Callable[[list[Any]], None], call: str, changes: bool = False) -> None:
    """Run a function on the first rank while it holds all variables; with `changes` each rank gets its own back.

    Every rank calls, and returns when the function is done; without `changes` the other replicas return at once. The
    function receives the variables in the order of `all_variables`. Raises `ParallelError` on every rank when the
    function fails; `call` is the user's call, for the message.
    """
    rank_state = state.get()
    # The first pipeline holds the whole model; other replicas only receive.
    first_pipeline = rank_state.grid.group("P", 0)
    if not changes and rank_state.rank not in first_pipeline:
        return
    variables = [variable_of(variable) for variable in model.all_variables()]
    if rank_state.rank in first_pipeline[1:]:
        send(_values(variables, rank_state), 0, RankType.WORLD_RANK)
    if rank_state.rank == 0:
        borrowed: list[Any] = []
        rank_state.holds_all = True
        try:
            failure = _run_with_all_values(variables, first_pipeline[1:], borrowed, run)
            for rank in range(1, rank_state.grid.world_size) if changes else first_pipeline[1:]:
                partition = rank_state.grid.coordinates(rank)["P"]
                values = _values(variables, rank_state, partition) if changes and failure is None else {}
                send((failure, values), rank, RankType.WORLD_RANK)
        finally:
            rank_state.holds_all = False
            # The handles stay: `State.owners` knows their ids.
            for variable in borrowed:
                release(variable)
    else:
        failure, values = recv_from(0, RankType.WORLD_RANK)
        for number, value in values.items():
            variables[number].assign(value)
    if failure is not None:
        raise ParallelError(f"{call}: {failure}")


def _run_with_all_values(
    variables: list[Any], senders: Sequence[int], borrowed: list[Any], run: Callable[[list[Any]], None]
) -> str | None:
    """Return an error message, None on success; variables that get a value of another rank go into `borrowed`."""
    try:
        for rank in senders:
            for number, value in recv_from(rank, RankType.WORLD_RANK).items():
                borrowed.append(variables[number])
                fill(variables[number], value)
        run(variables)
    except PeerFailedError:
        # A rank is lost, so the others fail by themselves: no message could reach all of them.
        raise
    except Exception as error:  # noqa: BLE001 - any error must reach the other ranks, which wait
        return f"{type(error).__name__}: {error}"
    return None


def _values(
    variables: list[Any], rank_state: state.State, partition: int | None = None
) -> dict[int, np.ndarray[Any, Any]]:
    """Return the values of a partition, by default this rank's own, by their number in `all_variables`.

    For another partition, the values of variables that every rank has are included.
    """
    owners = (rank_state.pp_rank,) if partition is None else (partition, None)
    return {
        number: variable.numpy() for number, variable in enumerate(variables) if rank_state.owner_of(variable) in owners
    }


def _require_partitioned(caller: str) -> None:
    rank_state = state.get()
    if state.is_tracing() or not rank_state.partitioned or rank_state.signature is None:
        raise ParallelError(
            f"{caller}: call it after the first step and outside of one; before, the inputs of the model and the owners"
            " of its variables are unknown"
        )


def _refuse_checkpoint(path: str) -> None:
    if not path.endswith((".h5", ".hdf5")):
        raise ParallelError(
            f"{path}: the weights of a model on several ranks are saved as a Keras file, whose name ends in"
            " .weights.h5. For a TensorFlow checkpoint, use smp.CheckpointManager"
        )


@contextmanager
def _unwrapped(model: SplitModel) -> Iterator[Any]:
    """Yield the wrapped model without its optimizer, which has slots for this rank's variables only."""
    whole = getattr(model, "module", model)
    # Out of `vars`, because Keras's own setter would track a new optimizer.
    optimizer = vars(whole).pop("optimizer", None)
    try:
        yield whole
    finally:
        if optimizer is not None:
            vars(whole)["optimizer"] = optimizer


def _write(model: SplitModel, variables: list[Any], specs: Any, path: str) -> None:
    def predict(*args: Any) -> Any:
        # `DistributedModel.__call__` refuses calls outside of a step. Here the model is whole, so call Keras's method.
        return keras.Model.__call__(model, *args, **_training(model))

    # A SavedModel contains the variables that its root object tracks, and `tf.Module` tracks lists.
    holder = tf.Module()
    holder.held = variables
    tensor_specs = [spec for spec in specs if not _is_empty(spec)]
    holder.serve = tf.function(predict, input_signature=tensor_specs)
    flat_specs = tf.nest.flatten(tensor_specs)
    names = ["inputs", *(f"inputs_{number}" for number in range(1, len(flat_specs)))]
    named_specs = [tf.TensorSpec(spec.shape, spec.dtype, name) for spec, name in zip(flat_specs, names, strict=True)]

    def signature(*leaves: Any) -> dict[str, Any]:
        outputs = tf.nest.flatten(holder.serve(*tf.nest.pack_sequence_as(tensor_specs, leaves)))
        return {f"output_{number}": output for number, output in enumerate(outputs)}

    serving = tf.function(signature, input_signature=named_specs).get_concrete_function()
    tf.saved_model.save(holder, path, signatures={_SIGNATURE: serving})


def _training(model: Any) -> dict[str, bool]:
    """Return `training=False` for a model whose `call` has that argument."""
    return {"training": False} if "training" in inspect.signature(model.call).parameters else {}


def _is_empty(spec: Any) -> bool:
    return all(leaf is None for leaf in tf.nest.flatten(spec))
