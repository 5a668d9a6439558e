"""The same values in all ranks' variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree, broadcast
from herringbone_parallel.reduce.comparison import are_equal
from herringbone_parallel.reduce.fused import Array
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.gradients import inner_variable, name_of
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted, start_in_order


@not_converted
def broadcast_variables(variables: Iterable[Any], root_rank: int) -> Any:
    """Give all ranks' variables the values that rank `root_rank` has; in a graph of TensorFlow 1, return the operation.

        sdp.broadcast_variables(model.variables, root_rank=0)
        sdp.broadcast_variables(optimizer.variables, root_rank=0)

    Ranks compare digests first: with the same seed on all ranks nothing is sent. Raises `ParallelError` when ranks have
    different variables.
    """
    targets = [inner_variable(variable) for variable in (variables() if callable(variables) else variables)]
    if not targets:
        return None
    names = [name_of(variable) for variable in targets]
    if tf.executing_eagerly():
        for target, value in zip(targets, _shared(names, [v.numpy() for v in targets], root_rank), strict=True):
            target.assign(value)
        return None
    values = start_in_order(
        lambda *arrays: _shared(names, arrays, root_rank),
        [tf.convert_to_tensor(target) for target in targets],
        [target.dtype.base_dtype for target in targets],
    )
    for target, value in zip(targets, values, strict=True):
        value.set_shape(target.shape)
    assigned = [target.assign(value) for target, value in zip(targets, values, strict=True)]
    # In a `tf.function` they run by themselves, and an operation cannot be returned from it.
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that gives all ranks the global variables of rank `root_rank`, in a graph of TensorFlow 1.

    Raises `ParallelError` where there is no list of global variables, which is anywhere else.
    """
    if tf.executing_eagerly() or isinstance(tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph):
        raise ParallelError(
            "broadcast_global_variables works in a graph of TensorFlow 1; TensorFlow 2 keeps no list of all variables:"
            " call broadcast_variables(model.variables, root_rank=0), and the same with optimizer.variables"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts the global variables when a session of TensorFlow 1 begins.

    tf.compat.v1.train.MonitoredTrainingSession(hooks=[sdp.BroadcastGlobalVariablesHook(0)])
    """

    def __init__(self, root_rank: int) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph, before it is finished."""
        self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """Broadcast what the session has initialized or restored."""
        session.run(self._operation)


def _shared(names: Sequence[str], arrays: Sequence[Array], root_rank: int) -> list[Array]:
    """Return the root's arrays, all sent at once."""
    engine = state.get().engine
    lines = [f"{name}: {array.dtype} {list(array.shape)}" for name, array in zip(names, arrays, strict=True)]
    agree(engine, "the variables", "\n".join(lines))
    if are_equal(engine, arrays):
        return [np.asarray(array) for array in arrays]
    flat = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    broadcast(engine, flat, root_rank)
    ends = np.cumsum([array.nbytes for array in arrays])
    return [
        flat[end - array.nbytes : end].copy().view(array.dtype).reshape(array.shape)
        for array, end in zip(arrays, ends, strict=True)
    ]
