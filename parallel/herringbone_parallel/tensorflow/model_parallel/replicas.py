"""The replicas of a pipeline: the ranks that hold this rank's partition too, and start and stay like it.

Without `horovod` a step averages its gradients over them; with it the script does, by `hvd.allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import RDP_GROUP
from herringbone_parallel.reduce.comparison import digest
from herringbone_parallel.tensorflow.data_parallel.gradients import Travel, reduce_gradients
from herringbone_parallel.tensorflow.data_parallel.variables import broadcast_variables
from herringbone_parallel.tensorflow.model_parallel.communication import allgather

if TYPE_CHECKING:
    from herringbone_parallel.tensorflow.model_parallel.state import State


def start_alike(here: State, fresh: set[int]) -> None:
    """Give this rank's weights, of those whose handles have these ids, the values that the first replica has.

    The states of random generators stay: a script may give each replica a seed of its own.
    """
    if here.replicas is not None and here.model is not None:
        weights = [weight for weight in here.model.weights if id(weight.handle) in fresh]
        broadcast_variables(weights, root_rank=0)


def average(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return the averages of gradients, arrays, over the replicas; outside of a graph."""
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return [average.numpy() for average in reduce_gradients(tensors, variables, Travel())]


def check_alike(here: State) -> None:
    """Raise `ParallelError` where replicas train from different weights; each of them calls it, in the same step.

    Moving statistics differ, as each replica sees other data.
    """
    assert here.model is not None
    own = [weight for weight in here.model.trainable_weights if here.owner_of(weight) == here.pp_rank]
    found = allgather(digest([np.asarray(weight.value) for weight in own]), RDP_GROUP)
    odd = next((index for index, theirs in enumerate(found) if theirs != found[0]), None)
    if odd is None:
        return
    ranks = here.grid.group("D", here.rank)
    advice = (
        "with `horovod` a script averages them, gradients = [hvd.allreduce(g.accumulate()) for g in gradients], and"
        " applies them after the same steps on all replicas"
        if here.settings.horovod
        else "apply the gradients that a step returns, as they are, after the same steps on all replicas"
    )
    raise ParallelError(
        f"ranks {ranks[0]} and {ranks[odd]} hold the same partition of two replicas, and their weights are no longer"
        f" equal after a step: {advice}"
    )
