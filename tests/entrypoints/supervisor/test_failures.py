"""A failing rank stops every host soon, with the reason and the rank's own exit code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.entrypoints.deaths import CODES, SCRIPT
from tests.pairwise import pairwise

from herringbone_contract.constants import MAX_FAILURE_CHARS

TORCH = {"sagemaker_torch_distributed_enabled": True}
MPI = {"sagemaker_mpi_enabled": True}


def check(ended, job, how: str, rank: int) -> None:
    for host, result in ended.items():
        assert result.code == CODES[how], (host, result.output)
        failure = result.failure
        assert failure is not None
        assert (failure.host, failure.rank, failure.exit_code) == (f"algo-{rank + 1}", rank, CODES[how])
        if how == "sigkill":
            assert failure.frames == ()
        else:
            assert failure.frames[-1].function == "fail"
            assert failure.frames[-1].file.endswith("train.py")
        assert any(line.startswith("last words") for line in failure.log_tail), failure.log_tail
        assert not result.success
        assert f"rank {rank} on algo-{rank + 1}" in result.failure_text
    assert job.survivors() == []


def ends_every_host(job, how: str, rank: int) -> None:
    ended = job.run()
    over = time.time()
    last_words = [line for result in ended.values() for line in result.rank_lines if "last words" in line]
    assert last_words, ended
    took = over - float(last_words[0].split()[-1])
    check(ended, job, how, rank)
    assert took < 5.0


@pytest.mark.parametrize("rank", [0, 1], ids=["first-host", "last-host"])
@pytest.mark.parametrize("how", list(CODES))
def test_p5_any_death_ends_every_host(make_job, how: str, rank: int) -> None:
    job = make_job(hosts=2, HOW=how, BAD_RANK=str(rank))
    job.write(SCRIPT, **TORCH)
    ends_every_host(job, how, rank)


def test_a_message_that_utf_8_cannot_carry_is_shown(make_job) -> None:
    # Its supervisor ended in a UnicodeEncodeError of its own, and the job in that error.
    job = make_job(hosts=2)
    job.write("raise ValueError('no \\udc80 here')", **TORCH)
    for result in job.run().values():
        assert (result.code, result.failure.rank is None) == (1, False)
        assert result.failure.message == "no \\udc80 here"
        assert "ValueError: no \\udc80 here" in result.failure_text


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("over", "kind", "how", "rank"), pairwise(("unix", "tcp"), ("openmpi4", "openmpi5", "mpich"), CODES, (0, 1))
)
def test_p5_p25_the_same_under_each_mpi(make_job, mpirun, over: str, kind: str, how: str, rank: int) -> None:
    job = make_job(hosts=2, over=over, HOW=how, BAD_RANK=str(rank), HERRINGBONE_MPIRUN=mpirun(kind))
    job.write(SCRIPT, **MPI)
    if kind == "mpich" and how in ("sigkill", "segfault"):
        # MPICH kills the others within the millisecond and collects them itself, perhaps before our supervisors look.
        # Then nobody knows which rank was first, and the SIGKILL of the other one may be what is left to see.
        for result in job.run().values():
            assert result.code in (CODES[how], CODES["sigkill"])
            assert result.failure is not None
            assert (result.failure.host, result.failure.rank) in (("algo-1", 0), ("algo-2", 1))
        return
    ends_every_host(job, how, rank)


# Starts rank 1 late: rank 0 has failed, and everything has ended but mpirun itself.
SLOW_MPIRUN = """#!/bin/sh
[ "$1" = --version ] && exec echo "mpirun (Open MPI) 5.0.11"
trap "" TERM
shift 8
OMPI_COMM_WORLD_RANK=0 "$@" &
sleep 1.3
OMPI_COMM_WORLD_RANK=1 "$@" &
wait
"""


def test_p5_a_rank_that_attaches_after_the_failure_does_not_run(make_job, tmp_path) -> None:
    # Only ranks that had attached by then got the signal.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(SLOW_MPIRUN)
    mpirun.chmod(0o755)
    job = make_job(HERRINGBONE_MPIRUN=str(mpirun))
    job.write(
        """
        import os, time
        if os.environ["RANK"] == "0":
            raise ValueError("boom")
        time.sleep(0.3)
        open(os.environ["ROOT"] + "/late", "w")
        time.sleep(60)
        """,
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    ended = job.run(timeout=15.0)["algo-1"]
    assert (ended.code, ended.failure.rank, ended.failure.message) == (1, 0, "boom")
    assert not (job.root / "late").exists()
    assert job.survivors() == []


@pytest.mark.parametrize("code", [1, 2, 42, 125])
def test_p12_the_exit_code_is_the_ranks_own(make_job, code: int) -> None:
    job = make_job()
    job.write(f"import sys; sys.exit({code})")
    assert job.run()["algo-1"].code == code


@pytest.mark.parametrize("number", ["SIGTERM", "SIGABRT", "SIGUSR1"])
def test_p12_a_signal_is_128_and_its_number(make_job, number: str) -> None:
    import signal

    job = make_job()
    job.write(f"import os, signal; os.kill(os.getpid(), signal.{number})")
    assert job.run()["algo-1"].code == 128 + getattr(signal, number)


def test_p12_a_text_given_to_sys_exit_is_printed_and_means_1(make_job) -> None:
    job = make_job()
    job.write("import sys; sys.exit('no data')")
    ended = job.run()["algo-1"]
    assert ended.code == 1
    assert ended.lines[0] == "[algo-1:0] no data"
    assert ended.failure.exception == "SystemExit"


GOLDEN = {
    "exception": (
        """
        def load(path):
            raise FileNotFoundError(f"no such data: {path}")
        print("loading")
        load("/data/x")
        """,
        "rank 0 on algo-1: FileNotFoundError: no such data: /data/x (exit code 1)\n"
        '  at train.py:5 in <module>: load("/data/x")\n'
        '  at train.py:3 in load: raise FileNotFoundError(f"no such data: {path}")\n'
        "  | loading",
    ),
    "os._exit": (
        "import os\nprint('bye')\nos._exit(9)",
        "rank 0 on algo-1: os._exit: the program called os._exit(9) (exit code 9)\n"
        "  at train.py:3 in <module>: os._exit(9)\n"
        "  | bye",
    ),
    "syntax": (
        "x = (1,\n",
        "rank 0 on algo-1: SyntaxError: '(' was never closed (train.py, line 1) (exit code 1)\n"
        "  at train.py:1 in <module>: x = (1,\n"
        '  |   File "train.py", line 1\n  |     x = (1,\n  |         ^\n'
        "  | SyntaxError: '(' was never closed",
    ),
    "kill": (
        "import os, signal\nprint('eating memory')\nos.kill(os.getpid(), signal.SIGKILL)",
        "rank 0 on algo-1: exit code 137, killed by SIGKILL\n  | eating memory",
    ),
}


@pytest.mark.parametrize("case", list(GOLDEN))
def test_p13_the_failure_file_has_cause_frames_and_last_lines(make_job, case: str) -> None:
    script, golden = GOLDEN[case]
    job = make_job()
    job.write(script)
    ended = job.run()["algo-1"]
    assert ended.failure_text == golden
    # The log has the traceback once, with the user's own names of files, and then the head alone.
    assert ended.lines[-1] == f"[algo-1] failed: {golden.splitlines()[0]}"
    assert "/code/" not in "".join(ended.lines)


def test_p13_a_long_failure_keeps_its_head_in_the_first_200_characters(make_job) -> None:
    job = make_job()
    job.write("print('x' * 5000)\nfor i in range(5000): print('ValueError: not this one')\nraise KeyError('k' * 40)")
    ended = job.run()["algo-1"]
    assert len(ended.failure_text) <= MAX_FAILURE_CHARS
    assert "rank 0 on algo-1: KeyError: " in ended.failure_text[:200]


def test_p13_a_failure_file_of_the_users_own_is_kept(make_job) -> None:
    job = make_job()
    job.write(
        "import os; open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('mine'); raise ValueError('theirs')"
    )
    ended = job.run()["algo-1"]
    assert ended.failure_text == "mine"
    assert (ended.failure.exception, ended.failure.message) == ("ValueError", "mine (theirs)")


WORDS = "open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('no data')"


@pytest.mark.parametrize(
    ("program", "script", "reason"),
    [
        ("train.py", f"import os, sys; {WORDS}; sys.exit(3)", "exit code 3: no data"),
        ("train.py", f"import os; {WORDS}; os._exit(3)", "exit code 3: no data"),
        ("train.py", f"import os; {WORDS}; os.kill(os.getpid(), 9)", "exit code 137, killed by SIGKILL: no data"),
        ("train.py", f"import os; {WORDS}; raise KeyError('a')", "KeyError: no data ('a') (exit code 1)"),
        ("run.sh", 'echo " no data" > "$SM_OUTPUT_DIR/failure"; exit 5', "exit code 5: no data"),
    ],
    ids=["exit", "os-exit", "signal", "raise", "shell"],
)
def test_the_scripts_own_words_are_the_reason(make_job, program: str, script: str, reason: str) -> None:
    job = make_job(hosts=2)
    script = (
        script if program == "run.sh" else f"import os, time\nif os.environ['RANK'] == '0': time.sleep(60)\n{script}"
    )
    job.write(script, program=program, **({} if program == "run.sh" else TORCH))
    ended = job.run()
    for result in ended.values():
        assert result.failure.what == reason
    assert f": {reason}" in ended["algo-1"].lines[-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("os.mkfifo(path)", "3"),
        ("os.symlink('/etc/hostname', path)", "3"),
        ("os.mkdir(path)", "3"),
        (
            "folder, away = os.path.dirname(path), os.path.abspath('away')\n"
            "os.rename(folder, away); os.symlink(away, folder); open(path, 'w').write('a')",
            "3",
        ),
        ("open(path, 'wb').write(b' \\n')", "3"),
        ("open(path, 'wb').write(b'a\\xff\\x1b[2J\\n' + 'é'.encode() * 5000)", "a\ufffd\x1b[2J\n" + "é" * 1_017),
        ("open(path, 'w').write('HF_TOKEN=abc https://me:pw@host')", "HF_TOKEN=****** https://me:******@host"),
    ],
    ids=["fifo", "link", "folder", "linked-folder", "blank", "long", "secret"],
)
def test_a_failure_file_is_text_of_a_stranger(make_job, make: str, message: str) -> None:
    job = make_job()
    job.write(f"import os, sys\npath = os.environ['SM_OUTPUT_DIR'] + '/failure'\n{make}\nsys.exit(3)")
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure.message) == (3, message)
    assert "\x1b" not in ended.lines[-1]


def test_a_script_that_ends_well_has_no_reason(make_job) -> None:
    job = make_job()
    job.write(f"import os; {WORDS}")
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure, ended.success) == (0, None, True)


SLEEP = "import os, time; open(os.environ['ROOT'] + '/up-' + os.environ['RANK'], 'w'); time.sleep(60)"
MPIRUNS = ("mpirun", "orterun_wrapper", "prterun", "mpiexec.hydra")
DAEMONS = ("orted", "prted", "hydra_pmi_proxy")


def process_of(job, names: tuple[str, ...], host: str) -> int:
    """Return the pid of the program with one of these names below the supervisor of a host."""
    parents, programs = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        parents[int(folder.name)] = int(rest.split()[1])
        programs[int(folder.name)] = name.partition("(")[2]
    for pid, program in programs.items():
        # The kernel cuts names to 15 characters.
        if any(program == name[:15] for name in names):
            above = pid
            while above := parents.get(above, 0):
                if above == job.processes[host].pid:
                    return pid
    raise AssertionError(f"no {names} below {host}: {sorted(set(programs.values()))}")


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
@pytest.mark.parametrize(
    ("names", "host", "event", "over"),
    [
        (MPIRUNS, "algo-1", "mpirun ended before its ranks did", "unix"),
        (MPIRUNS, "algo-1", "mpirun ended before its ranks did", "tcp"),
        (DAEMONS, "algo-2", "mpirun's daemon ended before its ranks did", "tcp"),
    ],
    ids=["mpirun-unix", "mpirun-tcp", "daemon-tcp"],
)
def test_a_killed_mpirun_or_daemon_is_named(make_job, mpirun, kind: str, names, host: str, event: str, over) -> None:
    # Some rank was named, "killed by SIGKILL", and such a job is never retried.
    job = make_job(hosts=2, over=over, HERRINGBONE_MPIRUN=mpirun(kind))
    job.write(SLEEP, **MPI)
    job.start()
    job.seen("up-", 2)
    os.kill(process_of(job, names, host), signal.SIGKILL)
    for result in job.wait().values():
        assert result.code == 137
        assert (result.failure.host, result.failure.rank, result.failure.interrupted_host) == (host, None, host)
        assert result.failure.message == f"lost a process of {host}: {event}"
    assert job.survivors(patience=3.0) == []
