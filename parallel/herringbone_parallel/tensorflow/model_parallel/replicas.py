"""Replicas of a pipeline: the ranks that hold the same partition, which start and stay equal.

Without `horovod` a step averages its gradients over the replicas; with `horovod` the script does, by `hvd.allreduce`.
The sums are those of the data-parallel library: a group of replicas is a small data-parallel job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import RDP_GROUP
from herringbone_parallel.reduce.comparison import digest
from herringbone_parallel.tensorflow.data_parallel.gradients import ReduceOp, ReduceOptions, gathered, reduce_gradients
from herringbone_parallel.tensorflow.data_parallel.variables import broadcast_variables
from herringbone_parallel.tensorflow.model_parallel.communication import allgather
from herringbone_parallel.tensorflow.model_parallel.state import State


def start_alike(rank_state: State, new_handles: set[int]) -> None:
    """Give this rank's new weights the values of the first replica; `new_handles` are the ids of their handles.

    The states of random generators stay as they are: a script may give each replica a seed of its own.
    """
    if rank_state.replicas is not None and rank_state.model is not None:
        weights = [weight for weight in rank_state.model.weights if id(weight.handle) in new_handles]
        broadcast_variables(weights, root_rank=0)


def average(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return the averages of gradients over the replicas; takes and returns arrays, outside of a graph."""
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return [average.numpy() for average in reduce_gradients(tensors, variables, ReduceOptions())]


def join_slices(results: Sequence[list[Any]], sparse: Sequence[tuple[int, int]]) -> None:
    """Replace the parts of sparse gradients, in each microbatch's results, by the average over the replicas."""
    # Not as tensors: Keras's Adam takes another step for the same gradient as a tensor.
    for leaves in results:
        for values, indices in sparse:
            slices = tf.IndexedSlices(tf.convert_to_tensor(leaves[values]), tf.convert_to_tensor(leaves[indices]))
            joined = gathered(slices, ReduceOp.AVERAGE)
            leaves[values], leaves[indices] = joined.values, joined.indices


def check_alike(rank_state: State) -> None:
    """Raise `ParallelError` where replicas train different weights; each replica calls it in the same step."""
    assert rank_state.model is not None
    # Trainable weights only: moving statistics differ, because each replica sees other data.
    own_weights = [
        weight for weight in rank_state.model.trainable_weights if rank_state.owner_of(weight) == rank_state.pp_rank
    ]
    digests = allgather(digest([np.asarray(weight.value) for weight in own_weights]), RDP_GROUP)
    odd = next((index for index, other in enumerate(digests) if other != digests[0]), None)
    if odd is None:
        return
    ranks = rank_state.grid.group("D", rank_state.rank)
    advice = (
        "with `horovod` a script averages them, gradients = [hvd.allreduce(g.accumulate()) for g in gradients], and"
        " applies them after the same steps on all replicas"
        if rank_state.settings.horovod
        else "apply the gradients that a step returns, as they are, after the same steps on all replicas"
    )
    raise ParallelError(
        f"ranks {ranks[0]} and {ranks[odd]} hold the same partition of two replicas, and their weights are no longer"
        f" equal after a step: {advice}"
    )
