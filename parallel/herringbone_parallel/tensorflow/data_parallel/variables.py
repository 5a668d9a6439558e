"""Gives the variables of all ranks the same values."""

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
    """Give the variables of all ranks the values of rank `root_rank`; in a TensorFlow 1 graph, return the operation.

        sdp.broadcast_variables(model.variables, root_rank=0)
        sdp.broadcast_variables(optimizer.variables, root_rank=0)

    Ranks compare digests first, so nothing is sent if all ranks used the same seed. Raises `ParallelError` when ranks
    have different variables.
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
    # A `tf.function` runs its assignments without being asked, and it cannot return an operation.
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that gives all ranks the global variables of rank `root_rank`, in a TensorFlow 1 graph.

    Raises `ParallelError` anywhere else: only such a graph has a list of global variables.
    """
    if tf.executing_eagerly() or isinstance(tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph):
        raise ParallelError(
            "broadcast_global_variables works in a graph of TensorFlow 1; TensorFlow 2 keeps no list of all variables:"
            " call broadcast_variables(model.variables, root_rank=0), and the same with optimizer.variables"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts the global variables when a TensorFlow 1 session begins.

    tf.compat.v1.train.MonitoredTrainingSession(hooks=[sdp.BroadcastGlobalVariablesHook(0)])
    """

    def __init__(self, root_rank: int) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph, which no one may change once the session exists."""
        self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """Broadcast the values that the session has initialized or restored."""
        session.run(self._operation)


def _shared(names: Sequence[str], arrays: Sequence[Array], root_rank: int) -> list[Array]:
    """Return the arrays of the root, all sent at once."""
    engine = state.get().engine
    lines = [f"{name}: {array.dtype} {list(array.shape)}" for name, array in zip(names, arrays, strict=True)]
    agree(engine, "the variables", "\n".join(lines))
    if are_equal(engine, arrays):
        return [np.asarray(array) for array in arrays]
    # One message for all variables: thousands of small ones would each pay the latency of a broadcast.
    flat = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    broadcast(engine, flat, root_rank)
    ends = np.cumsum([array.nbytes for array in arrays])
    return [
        # A copy starts at an aligned address, which a view in the middle of the bytes may not.
        flat[end - array.nbytes : end].copy().view(array.dtype).reshape(array.shape)
        for array, end in zip(arrays, ends, strict=True)
    ]
