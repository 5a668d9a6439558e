"""The number of ranks on each host, and the host of each rank."""

from __future__ import annotations

import pytest

from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import RankPlacement, lay_out, ranks_on_host, ranks_per_host


@pytest.mark.parametrize(
    ("launcher", "processes_per_host", "planned", "started"),
    [
        (Launcher.PLAIN, None, 1, 1),
        (Launcher.MPI, None, 1, 1),
        (Launcher.MPI, 2, 2, 2),
        (Launcher.TORCH_DISTRIBUTED, None, None, 4),
        (Launcher.DATA_PARALLEL, None, None, 4),
        (Launcher.DATA_PARALLEL, 2, 2, 2),
        (Launcher.PARAMETER_SERVER, None, 1, 1),
        (Launcher.MULTI_WORKER_MIRRORED, None, 1, 1),
    ],
)
def test_the_plan_and_a_host_with_four_gpus_agree(launcher, processes_per_host, planned, started) -> None:
    assert ranks_per_host(launcher, processes_per_host) == planned
    assert ranks_on_host(launcher, processes_per_host, num_gpus=4) == started


def test_a_host_without_a_gpu_has_one_rank() -> None:
    assert ranks_on_host(Launcher.TORCH_DISTRIBUTED, None, num_gpus=0) == 1


def test_hosts_without_ranks_are_not_in_the_layout() -> None:
    layout = lay_out({"algo-10": 1, "algo-1": 0, "algo-2": 2})
    assert (layout.master, layout.world_size) == ("algo-2", 3)
    assert list(layout.ranks("algo-1")) == []
    assert layout.placement(2) == RankPlacement(2, 0, "algo-10", 1, 1, 2, 3)
