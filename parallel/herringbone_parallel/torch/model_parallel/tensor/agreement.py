"""The agreement of a tensor group's ranks at the start of a step: one seed, and batches of the same shapes."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.state import State


def agreed_seed(library: State, microbatch: Any, seed: int) -> int:
    """Return the seed of the tensor group's first rank: shared layers need the same random numbers on all ranks.

    Raises `ParallelError` if the group's ranks have batches of different shapes, with which collectives end in a crash.
    """
    if library.peers is None:
        return seed
    shapes = [list(leaf.shape) for leaf in leaves_of(microbatch) if isinstance(leaf, torch.Tensor)]
    own = torch.tensor([[seed, zlib.crc32(repr(shapes).encode())]], device=library.device)
    by_rank = library.peers.join(own, 0).tolist()
    # On other ranks of a pipeline the arguments of the first one count.
    if library.pp_rank == 0 and len({checksum for _, checksum in by_rank}) > 1:
        remedy = (
            "with prescaled_batch all of them have the same batch, so load data by smp.rdp_rank()"
            if library.settings.prescaled_batch
            else "shared layers compute on all their batches together, so pad these to one length and leave out a"
            " smaller last one (drop_last=True), or set prescaled_batch"
        )
        raise ParallelError(
            f"the tensors in a microbatch have the shapes {shapes} here, and others on another rank of the tensor"
            f" group: {remedy}"
        )
    return int(by_rank[0][0])
