"""Hosts that are containers find each other, each with its own name, environment and share of the ranks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.entrypoints.allreduce import ALLREDUCE

pytestmark = pytest.mark.docker

TORCH = {"sagemaker_torch_distributed_enabled": True}
MPI = {"sagemaker_mpi_enabled": True}
LAUNCHERS = pytest.mark.parametrize("launcher", [TORCH, MPI], ids=["torch", "mpi"])


@LAUNCHERS
def test_p3_p4_two_hosts_say_hello_and_leave(make_job, launcher) -> None:
    job = make_job(hosts=2)
    job.write("import os, time; print('hello from', os.environ['SM_CURRENT_HOST'], time.time())", **launcher)
    ended = job.run()
    over = time.time()
    for rank, host in enumerate(job.hosts):
        assert ended[host].code == 0, ended[host].output
        assert ended[host].success
        (line,) = ended[host].rank_lines
        assert line.startswith(f"[{host}:{rank}] hello from {host} ")
        # A busy engine takes up to 3 s to report an end. A host that missed the other's goodbye would wait for 5 s.
        assert over - float(line.split()[-1]) < 4.5


@LAUNCHERS
def test_p28_ranks_find_rank_0s_host_over_the_network_between_hosts(make_job, launcher) -> None:
    job = make_job(hosts=2)
    job.write(
        """
        import os, torch.distributed as dist
        print(*(os.environ[name] for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")))
        import torch
        dist.init_process_group("gloo")
        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        print("sum", total.item())
        dist.destroy_process_group()
        """,
        **launcher,
    )
    ended = job.run(timeout=60.0)
    for rank, host in enumerate(job.hosts):
        assert ended[host].rank_lines == [f"[{host}:{rank}] algo-1 eth0 eth0", f"[{host}:{rank}] sum 3.0"]


AS_A_GUEST = {"user": "1234:1234", "read_only": True, "tmpfs": {"/tmp": ""}}


@pytest.mark.mpi
@pytest.mark.parametrize("settings", [{}, AS_A_GUEST], ids=["root", "guest"])
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5"])
def test_p25_ranks_speak_mpi_across_hosts(make_job, mpirun, kind: str, settings) -> None:
    wheel = Path(mpirun(kind)).parents[1]
    job = make_job(hosts=3, HERRINGBONE_MPIRUN=mpirun(kind), LIBMPI=str(wheel / "lib" / "libmpi.so.40"))
    job.mounts.append(f"{wheel}:{wheel}:ro")
    job.write(ALLREDUCE, sagemaker_mpi_enabled=True, sagemaker_mpi_num_of_processes_per_host=2)
    if settings:
        job.give_to(1234)
    ended = job.run(timeout=60.0, **settings)
    assert sorted(line for result in ended.values() for line in result.rank_lines) == [
        f"[algo-{1 + rank // 2}:{rank}] ranks {{6}}" for rank in range(6)
    ]


@pytest.mark.mpi
def test_p25_mpich_across_hosts(make_job, mpirun) -> None:
    wheel = Path(mpirun("mpich")).parents[1]
    job = make_job(hosts=2, HERRINGBONE_MPIRUN=mpirun("mpich"))
    job.mounts.append(f"{wheel}:{wheel}:ro")
    job.write("import os; print(os.environ['PMI_RANK'], os.environ['SM_CURRENT_HOST'])", **MPI)
    ended = job.run(timeout=60.0)
    for rank, host in enumerate(job.hosts):
        assert ended[host].rank_lines == [f"[{host}:{rank}] {rank} {host}"]


@LAUNCHERS
def test_p16_ranks_live_in_the_groups_that_the_distribution_names(make_job, launcher) -> None:
    job = make_job(hosts=3)
    groups = [
        {"instance_group_name": "data", "instance_type": "ml.c5.large", "hosts": ["algo-1"]},
        {"instance_group_name": "train", "instance_type": "ml.p3.2xlarge", "hosts": ["algo-2", "algo-3"]},
    ]
    job.write(
        "import os; print(*(os.environ[name] for name in"
        " ('SM_CURRENT_HOST', 'SM_CURRENT_INSTANCE_GROUP', 'SM_CURRENT_INSTANCE_TYPE', 'MASTER_ADDR', 'RANK')))",
        groups=groups,
        sagemaker_distribution_instance_groups=["train"],
        **launcher,
    )
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0, 0], ended
    assert ended["algo-1"].rank_lines == []
    assert ended["algo-2"].rank_lines == ["[algo-2:0] algo-2 train ml.p3.2xlarge algo-2 0"]
    assert ended["algo-3"].rank_lines == ["[algo-3:1] algo-3 train ml.p3.2xlarge algo-2 1"]


@pytest.mark.parametrize("missing", ["algo-1", "algo-2"])
def test_p9_a_host_that_never_comes_is_named(make_job, missing: str) -> None:
    job = make_job(hosts=2, HERRINGBONE_JOIN_TIMEOUT="1")
    job.write("print('never')", **TORCH)
    (there,) = set(job.hosts) - {missing}
    job.start(there)
    ended = job.wait(timeout=10.0)[there]
    assert ended.code == 1
    assert f"{missing} did not come within 1 s" in ended.failure_text
