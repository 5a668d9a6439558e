"""Horovod's functions that say how it was built and where the ranks are."""

from __future__ import annotations

from herringbone_parallel.tensorflow.data_parallel.state import local_rank, local_size, rank, size

BUILDS = ["nccl_built", "mpi_built", "gloo_built", "ccl_built", "ddl_built", "cuda_built", "rocm_built"]
BUILDS += ["mpi_enabled", "gloo_enabled", "mpi_threads_supported"]
__all__ = [*BUILDS, "is_homogeneous", "cross_rank", "cross_size"]


def _built() -> bool:
    """Return False: the sums are Herringbone's own, and no library of Horovod's takes part."""
    return False


nccl_built = mpi_built = gloo_built = ccl_built = ddl_built = cuda_built = rocm_built = _built
mpi_enabled = gloo_enabled = mpi_threads_supported = _built


def is_homogeneous() -> bool:
    """Return True: each host of a job has the same number of ranks."""
    return True


def cross_size() -> int:
    """Return the number of hosts."""
    return size() // local_size()


def cross_rank() -> int:
    """Return the number of this rank's host."""
    return (rank() - local_rank()) // local_size()
