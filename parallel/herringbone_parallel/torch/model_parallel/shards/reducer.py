"""The reducer of a model with shards: reduces whole parameters as `Reducer` does, and the others to their parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from herringbone_parallel.torch.model_parallel.replicas.options import ReductionOptions
from herringbone_parallel.torch.model_parallel.replicas.reducer import Peers, Reducer
from herringbone_parallel.torch.model_parallel.shards.shards import Shards


class ShardedReducer(Reducer):
    """Averages the gradients of a model whose parameters `shards` divides.

    It reduces shards in every step that has a backward, whatever `backward_passes_per_step` says: their gradients of
    several steps add up in the parts, which is the same sum and needs no memory for whole gradients.
    """

    def __init__(self, peers: Peers, shards: Shards, options: ReductionOptions) -> None:
        self.shards = shards
        super().__init__(peers, shards.whole_parameters, options)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step on whole parameters; afterwards each rank has its part of the averages."""
        used: list[bool] | None = None
        with super().step():
            self.shards.begin()
            try:
                yield
                if self._backward_expected:
                    used = self.shards.reduce()
            finally:
                self.shards.end(used)

    def backward_ended(self) -> None:
        """Note that the backward of a microbatch has ended."""
        self.shards.backward_ended()

    def retire(self) -> None:
        """Stop watching parameters and modules."""
        super().retire()
        self.shards.retire()
