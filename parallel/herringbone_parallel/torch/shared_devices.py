"""Let several ranks of a host share one CUDA device: a pipeline of two ranks on a workstation with one GPU."""

from __future__ import annotations

from collections.abc import MutableMapping

from herringbone_parallel.core.launch import RankInfo

_HOST_ID = "NCCL_HOSTID"


def share_devices(environ: MutableMapping[str, str], rank_info: RankInfo, devices: int) -> bool:
    """Let NCCL take this rank as a host of its own, where the host has more ranks than devices.

    >>> environ = {}
    >>> share_devices(environ, RankInfo(rank=1, size=2, local_rank=1, local_size=2), devices=1), environ
    (True, {'NCCL_HOSTID': 'rank-1'})

    NCCL refuses two ranks of one host on one device ("Duplicate GPU detected"). It compares hosts by `NCCL_HOSTID`, and
    sends over sockets between different ones, which is slower than memory that both ranks see. Call it before the first
    collective: NCCL reads the variable once. A value that is set already stays. Returns whether devices are shared.
    Source: NCCL, environment variables.
    """
    if not 0 < devices < rank_info.local_size:
        return False
    environ.setdefault(_HOST_ID, f"rank-{rank_info.rank}")
    return True
