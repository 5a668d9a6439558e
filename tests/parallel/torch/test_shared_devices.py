"""Ranks that outnumber the devices of their host, in NCCL's eyes."""

from __future__ import annotations

import pytest

from herringbone_parallel.core.launch import RankInfo
from herringbone_parallel.torch.shared_devices import share_devices


@pytest.mark.parametrize(
    ("devices", "local_size", "expected"),
    [
        (0, 2, {}),
        (1, 1, {}),
        (2, 2, {}),
        (1, 2, {"NCCL_HOSTID": "rank-5"}),
        (2, 3, {"NCCL_HOSTID": "rank-5"}),
    ],
)
def test_ranks_are_hosts_of_their_own_only_where_devices_are_shared(
    devices: int, local_size: int, expected: dict[str, str]
) -> None:
    environ: dict[str, str] = {}
    assert share_devices(environ, RankInfo(5, 6, local_size - 1, local_size), devices) is bool(expected)
    assert environ == expected


def test_a_users_host_id_stays() -> None:
    environ = {"NCCL_HOSTID": "mine"}
    share_devices(environ, RankInfo(1, 2, 1, 2), 1)
    assert environ == {"NCCL_HOSTID": "mine"}
