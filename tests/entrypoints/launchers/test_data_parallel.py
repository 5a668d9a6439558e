"""The start of ranks under `smdistributed.dataparallel`, and the rendezvous of every distributed rank."""

from __future__ import annotations

import pytest

DATA_PARALLEL = {"sagemaker_distributed_dataparallel_enabled": True}
TORCH = {"sagemaker_torch_distributed_enabled": True}
OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
MPI = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 3}
PRINT_RENDEZVOUS = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR".split()
print(*(os.environ[name] for name in names), "OMPI_COMM_WORLD_RANK" in os.environ)
"""
TOLD = """
import os
print(open(os.environ["HERRINGBONE_REDUCE_TOKEN_FILE"]).read(), os.environ["HERRINGBONE_REDUCE_MEET"])
print(os.environ["MASTER_PORT"], os.environ.get("HERRINGBONE_REDUCE_SERVERS"))
"""


@pytest.mark.parametrize(
    ("variables", "settings", "lines"),
    [
        ({}, {}, ["[algo-1:0] 0 2 0 1 127.0.0.1 False", "[algo-2:1] 1 2 0 1 127.0.0.1 False"]),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            {OPTIONS: ""},
            [
                "[algo-1:0] 0 4 0 2 127.0.0.1 False",
                "[algo-1:1] 1 4 1 2 127.0.0.1 False",
                "[algo-2:2] 2 4 0 2 127.0.0.1 False",
                "[algo-2:3] 3 4 1 2 127.0.0.1 False",
            ],
        ),
    ],
)
def test_each_host_starts_one_rank_per_gpu_or_one(make_job, variables, settings, lines) -> None:
    job = make_job(hosts=2, **variables)
    job.write(PRINT_RENDEZVOUS, **DATA_PARALLEL, **settings)
    assert sorted(line for result in job.run().values() for line in result.rank_lines) == lines


def test_mpi_next_to_it_gives_the_number_of_ranks_and_starts_them(make_job, mpirun) -> None:
    job = make_job(HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write(PRINT_RENDEZVOUS, **DATA_PARALLEL, **MPI)
    lines = [f"[algo-1:{rank}] {rank} 3 {rank} 3 127.0.0.1 True" for rank in range(3)]
    assert sorted(job.run()["algo-1"].rank_lines) == lines


def test_its_custom_options_go_to_mpirun(make_job, mpirun) -> None:
    job = make_job(HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write("import os; print(os.environ['GREETING'])", **DATA_PARALLEL, **{OPTIONS: "-x GREETING=hello"})
    assert job.run()["algo-1"].rank_lines == ["[algo-1:0] hello"]


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("settings", [DATA_PARALLEL, TORCH, MPI])
def test_ranks_share_a_token_and_a_rendezvous_under_every_launcher(make_job, mpirun, hosts: int, settings) -> None:
    job = make_job(hosts=hosts, HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write(TOLD, **settings)
    texts = [line.split(maxsplit=1)[1] for result in job.run().values() for line in result.rank_lines]
    assert len(texts) == 2 * hosts * (3 if settings is MPI else 1)
    rendezvous, ports = {line for line in texts if ":" in line}, {line for line in texts if ":" not in line}
    assert len(rendezvous) == len(ports) == 1
    token, address = rendezvous.pop().split()
    port, servers = ports.pop().split()
    assert len(bytes.fromhex(token)) == 32
    assert address.startswith("127.0.0.1:")
    assert address.partition(":")[2] != port
    assert servers == "None"


def test_a_plain_script_gets_no_variables_of_it(make_job) -> None:
    job = make_job()
    job.write("import os; print([name for name in os.environ if name.startswith('HERRINGBONE_')])")
    assert job.run()["algo-1"].rank_lines == ["[algo-1:0] ['HERRINGBONE_EVENTS', 'HERRINGBONE_HOST_NAMES']"]
