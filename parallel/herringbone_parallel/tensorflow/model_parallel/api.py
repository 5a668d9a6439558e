"""Model parallelism for TensorFlow: the SMP v1 API on TensorFlow 2.16 and newer, with Keras 3.

# In a launched rank. Elsewhere: import herringbone_parallel.tensorflow.model_parallel.api as smp
import smdistributed.modelparallel.tensorflow as smp

smp.init()

class Net(smp.DistributedModel):
    def call(self, images, training=None):
        with smp.partition(0):
            hidden = self.first(images)
        with smp.partition(1):
            return self.second(hidden)

@smp.step
def get_gradients(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    return tape.gradient(loss, model.trainable_variables), loss
"""

from herringbone_parallel.tensorflow.require import require_tensorflow

# Before the imports below, which fail in TensorFlow's own words where it is missing or too old.
require_tensorflow()

from herringbone_parallel.core.groups import (  # noqa: E402
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
)
from herringbone_parallel.core.ranks import Ranks  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel import state as _state  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.checkpoint.manager import CheckpointManager  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.communication import (  # noqa: E402
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    recv_from,
    send,
)
from herringbone_parallel.tensorflow.model_parallel.model import DistributedModel, register_post_partition_hook  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.output import StepOutput  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.placement.partition import partition  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.state import init, is_initialized, shutdown  # noqa: E402
from herringbone_parallel.tensorflow.model_parallel.step import step  # noqa: E402

# This rank's numbers, sizes and groups; `core.ranks` explains them.
_ranks = Ranks(_state.get)
rank = _ranks.rank
size = _ranks.size
local_rank = _ranks.local_rank
local_size = _ranks.local_size
pp_rank = _ranks.pp_rank
pp_size = _ranks.pp_size
tp_rank = _ranks.tp_rank
tp_size = _ranks.tp_size
mp_rank = _ranks.mp_rank
mp_size = _ranks.mp_size
rdp_rank = _ranks.rdp_rank
rdp_size = _ranks.rdp_size
dp_rank = _ranks.dp_rank
dp_size = _ranks.dp_size
get_world_group = _ranks.get_world_group
get_mp_group = _ranks.get_mp_group
get_dp_group = _ranks.get_dp_group
get_pp_group = _ranks.get_pp_group
get_tp_group = _ranks.get_tp_group
get_rdp_group = _ranks.get_rdp_group

# start, model and step
__all__ = ["init", "is_initialized", "shutdown", "DistributedModel", "partition", "register_post_partition_hook"]
__all__ += ["step", "StepOutput"]
# checkpoints
__all__ += ["CheckpointManager"]
# ranks and sizes
__all__ += ["rank", "size", "local_rank", "local_size", "mp_rank", "mp_size", "dp_rank", "dp_size"]
__all__ += ["pp_rank", "pp_size", "tp_rank", "tp_size", "rdp_rank", "rdp_size"]
# groups
__all__ += ["get_world_group", "get_mp_group", "get_dp_group", "get_pp_group", "get_tp_group", "get_rdp_group"]
__all__ += ["CommGroup", "RankType", "WORLD", "MP_GROUP", "DP_GROUP", "PP_GROUP", "TP_GROUP", "RDP_GROUP"]
# objects between ranks
__all__ += ["send", "recv_from", "broadcast", "allgather", "barrier", "dp_barrier", "mp_barrier"]
