"""This rank's numbers, degrees and process groups under the names of AWS's `torch.sagemaker.state`.

Source of the names: the developer guide, "The SageMaker model parallel library v2 reference", and AWS's example
scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding import state as states
from herringbone_parallel.torch.sharding.mesh import SHARD_CONTEXT, JobMesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Ranker:
    """Positions of any rank of the job, as AWS's scripts ask for them: `state.ranker.get_rep_rank(global_rank)`."""

    def __init__(self, mesh: Callable[[], JobMesh]) -> None:
        self._mesh = mesh

    def get_rep_rank(self, rank: int) -> int:
        """Return the number of the copy of the training state to which a rank belongs."""
        return self._mesh().grid.index("R", rank)

    def get_tp_rank(self, rank: int) -> int:
        """Return a rank's index among the ranks that share its layers."""
        return self._mesh().grid.index("T", rank)


class Numbers:
    """The object `torch.sagemaker.state`; its members raise `ParallelError` before `init`.

    >>> import torch.sagemaker as tsm                  # doctest: +SKIP
    >>> tsm.state.tp_size                              # doctest: +SKIP
    2
    """

    ranker = Ranker(lambda: states.get().mesh)

    @property
    def rank(self) -> int:
        return states.get().mesh.rank

    @property
    def world_size(self) -> int:
        return states.get().mesh.grid.world_size

    @property
    def local_rank(self) -> int:
        return states.get().local_rank

    @property
    def hybrid_shard_degree(self) -> int:
        """The number of ranks that share one copy of the training state, those of one context included."""
        degrees = states.get().mesh.degrees
        return degrees.shard * degrees.context

    @property
    def tensor_parallel_degree(self) -> int:
        """The number of ranks that share each layer. AWS's example scripts assign 1; another number is refused."""
        return states.get().mesh.degrees.tensor

    @tensor_parallel_degree.setter
    def tensor_parallel_degree(self, degree: int) -> None:
        if degree != self.tensor_parallel_degree:
            raise ParallelError(
                f"torch.sagemaker.state.tensor_parallel_degree = {degree}: this job has"
                f" {self.tensor_parallel_degree}. Set it in the estimator's distribution dict"
            )

    @property
    def context_parallel_degree(self) -> int:
        return states.get().mesh.degrees.context

    @property
    def expert_parallel_degree(self) -> int:
        """1: there is no expert parallelism."""
        return 1

    @property
    def sm_activation_offloading(self) -> bool:
        return states.get().settings.sm_activation_offloading

    @property
    def random_seed(self) -> int:
        return states.get().settings.random_seed

    @property
    def tp_size(self) -> int:
        return self.tensor_parallel_degree

    @property
    def tp_rank(self) -> int:
        return self._index("T")

    @property
    def cp_size(self) -> int:
        return self.context_parallel_degree

    @property
    def cp_rank(self) -> int:
        return self._index("C")

    @property
    def ep_size(self) -> int:
        return 1

    @property
    def ep_rank(self) -> int:
        return 0

    @property
    def rep_size(self) -> int:
        """The number of copies of the training state."""
        return states.get().mesh.degrees.replicate

    @property
    def rep_rank(self) -> int:
        """The number of this rank's copy of the training state."""
        return self._index("R")

    @property
    def dp_size(self) -> int:
        """The number of different batches in a step; ranks of one layer or one sequence read the same batch."""
        return states.get().mesh.batches

    @property
    def dp_rank(self) -> int:
        """The number of this rank's batch, for a `DistributedSampler`."""
        return states.get().mesh.batch

    @property
    def world_process_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if states.is_initialized() else None

    @property
    def tp_process_group(self) -> dist.ProcessGroup | None:
        """The ranks that share this rank's layers; None without tensor parallelism."""
        mesh = states.get().mesh.tensor
        return None if mesh is None else mesh.get_group()

    @property
    def cp_process_group(self) -> dist.ProcessGroup | None:
        """The ranks that share this rank's sequence; None without context parallelism."""
        mesh = states.get().mesh.context
        return None if mesh is None else mesh.get_group()

    @property
    def rep_rank_process_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold one copy of the training state together; None where the script alone shards."""
        return self._parameters[SHARD_CONTEXT].get_group() if states.get().asks_for_sharding else None

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of parameters, with the axes replicate, shard_context and tensor."""
        return self._parameters

    @property
    def _parameters(self) -> DeviceMesh:
        return states.get().mesh.parameters

    def _index(self, axis: str) -> int:
        mesh = states.get().mesh
        return mesh.grid.index(axis, mesh.rank)


state = Numbers()
