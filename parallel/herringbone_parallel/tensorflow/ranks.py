"""Ranks, sizes and the members of groups under SMP v1's names.

rank, size                the world
local_rank, local_size    this host
mp_*, pp_*, tp_*          the model-parallel group and its pipeline and tensor axes
dp_*, rdp_*               the ranks that hold the same part of the model
"""

from __future__ import annotations

from herringbone_parallel.tensorflow import state


def rank() -> int:
    """Return this process's rank among all."""
    return state.get().rank


def size() -> int:
    """Return the number of all ranks."""
    return state.get().grid.world_size


def local_rank() -> int:
    """Return this process's rank on its host."""
    return state.get().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return state.get().local_size


def pp_rank() -> int:
    """Return this rank's index in its pipeline: the partition it holds."""
    return state.get().pp_rank


def pp_size() -> int:
    """Return the number of partitions."""
    return state.get().grid.pipeline


def tp_rank() -> int:
    """Return the index on the tensor-parallel axis."""
    return state.get().grid.coordinates(rank())["T"]


def tp_size() -> int:
    """Return the extent of the tensor-parallel axis."""
    return state.get().grid.tensor


def mp_rank() -> int:
    """Return the index in the model-parallel group (pipeline and tensor axes together)."""
    return get_mp_group().index(rank())


def mp_size() -> int:
    """Return the size of the model-parallel group."""
    return len(get_mp_group())


def rdp_rank() -> int:
    """Return the index among the ranks that hold exactly the same parameters."""
    return state.get().grid.coordinates(rank())["D"]


def rdp_size() -> int:
    """Return how many ranks hold exactly the same parameters."""
    return state.get().grid.data


def dp_rank() -> int:
    """Return the index among the ranks of the same partition."""
    return get_dp_group().index(rank())


def dp_size() -> int:
    """Return how many ranks share this partition."""
    return len(get_dp_group())


def get_mp_group() -> list[int]:
    """Return the global ranks of this rank's model-parallel group."""
    return list(state.get().grid.group("PT", rank()))


def get_dp_group() -> list[int]:
    """Return the global ranks of the same partition."""
    return list(state.get().grid.group("DT", rank()))


def get_pp_group() -> list[int]:
    """Return the global ranks of this rank's pipeline."""
    return list(state.get().grid.group("P", rank()))


def get_tp_group() -> list[int]:
    """Return the global ranks along the tensor-parallel axis."""
    return list(state.get().grid.group("T", rank()))


def get_rdp_group() -> list[int]:
    """Return the global ranks that hold exactly the same parameters."""
    return list(state.get().grid.group("D", rank()))


def get_world_group() -> list[int]:
    """Return all global ranks."""
    return list(range(size()))
