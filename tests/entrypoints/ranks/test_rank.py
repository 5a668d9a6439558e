"""A script in a rank behaves as under `python script.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from herringbone_contract.constants import HostVariable
from herringbone_entry.channel import attach

SEMANTICS = """
    import atexit, multiprocessing, os, pickle, sys

    class Point:
        def __init__(self, x): self.x = x

    def double(x): return 2 * x

    if __name__ == "__main__":
        atexit.register(print, "atexit ran")
        print(pickle.loads(pickle.dumps(Point(3))).x, Point.__module__, os.path.basename(__file__))
        print(sys.modules["__main__"].Point is Point, __spec__, __package__, sys.argv[1:])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [1, 2]))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            print(pool.map(double, [3]))
"""


def test_a_script_is_main(make_job) -> None:
    job = make_job()
    job.write(SEMANTICS)
    ended = job.run()["algo-1"]
    assert ended.code == 0
    assert ended.lines == [
        "[algo-1:0] 3 __main__ train.py",
        "[algo-1:0] True None None []",
        "[algo-1:0] [2, 4]",
        "[algo-1:0] [6]",
        "[algo-1:0] atexit ran",
    ]


CRASH = """
    import atexit, os, threading, time

    class Crash:
        def __init__(self, end): self.end = end
        def __del__(self): self.end()

    atexit.register(print, "atexit ran")
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread ended"))).start()
    kept = open("kept.txt", "w")
    kept.write("not closed")
"""


ASYNC = """
    import fcntl, os, stat
    for descriptor in map(int, os.listdir("/dev/fd")):
        try:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        except OSError:
            continue
        if flags & os.O_ASYNC:
            print("is a pipe:", stat.S_ISFIFO(os.fstat(descriptor).st_mode))
"""


@pytest.mark.parametrize("launcher", [{}, pytest.param({"sagemaker_mpi_enabled": True}, marks=pytest.mark.mpi)])
def test_no_message_can_kill_a_rank(make_job, launcher) -> None:
    """The kernel wakes a reader before it looks for O_ASYNC: on the link, a rank was killed by its start message."""
    job = make_job()
    job.write(ASYNC, **launcher)
    assert job.run()["algo-1"].lines == ["[algo-1:0] is a pipe: True"]


@pytest.mark.parametrize(("end", "name"), [("os.abort", "SIGABRT"), ("lambda: os.kill(os.getpid(), 11)", "SIGSEGV")])
def test_a_crash_in_pythons_teardown_fails_no_job(make_job, end: str, name: str) -> None:
    """Before Python 3.14 a thread of torch that asks for Python's lock in the teardown ends in SIGABRT."""
    job = make_job()
    job.write(f"{CRASH}\n    crash = Crash({end})\n")
    ended = job.run()["algo-1"]
    assert ended.code == 0
    said = [line for line in ended.lines if "thread ended" in line or "atexit ran" in line or "teardown" in line]
    assert said[:2] == ["[algo-1:0] thread ended", "[algo-1:0] atexit ran"]
    assert said[2].startswith(f"[algo-1:0] herringbone: Python was ended by {name} in its teardown")
    assert (job.base() / "code/kept.txt").read_text() == "not closed"


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
def test_a_crash_in_the_teardown_of_mpiruns_last_rank_fails_no_job(make_job, mpirun, kind: str) -> None:
    """The first rank waits before its crash until the second one has ended."""
    job = make_job(HERRINGBONE_MPIRUN=mpirun(kind))
    wait = "lambda: (time.sleep(1.0 if os.environ['RANK'] == '0' else 0.0), os.abort())"
    job.write(
        f"{CRASH}\n    if os.environ['RANK'] == '0': crash = Crash({wait})\n",
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure) == (0, None), ended.lines


@pytest.mark.mpi
@pytest.mark.parametrize("kind", [None, "openmpi4"])
def test_a_crash_in_a_function_of_atexit_fails_the_job(make_job, mpirun, kind: str | None) -> None:
    job = make_job(**({"HERRINGBONE_MPIRUN": mpirun(kind)} if kind else {}))
    job.write("import atexit, os\natexit.register(os.abort)", sagemaker_mpi_enabled=bool(kind))
    assert job.run()["algo-1"].code == 134


def test_a_traceback_is_printed_as_python_prints_it(make_job) -> None:
    job = make_job()
    job.write(
        """
        def inner():
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("wrapped") from error
        inner()
        """
    )
    ended = job.run()["algo-1"]
    # With the names of files that the user has, as in the folder of the code.
    plain = subprocess.run([sys.executable, "train.py"], cwd=job.base() / "code", capture_output=True, text=True)
    theirs = [line for line in ended.lines if line.startswith("[algo-1:0] ")]
    expected = plain.stderr.replace(f'File "{job.base()}/code/', 'File "')
    assert theirs == [f"[algo-1:0] {line}" for line in expected.splitlines()]


def test_the_users_own_excepthook_is_called(make_job) -> None:
    job = make_job()
    job.write("import sys\nsys.excepthook = lambda kind, value, trace: print('mine:', value)\nraise ValueError('boom')")
    ended = job.run()["algo-1"]
    assert ended.lines[0] == "[algo-1:0] mine: boom"
    assert ended.code == 1


def test_an_error_that_the_library_raises_on_purpose_ends_at_the_users_line(make_job) -> None:
    """torch.distributed wraps the hook that it finds, as this script does."""
    job = make_job()
    job.write(
        """
        import sys
        from herringbone_parallel.core.pipeline.microbatch import microbatch_size
        found = sys.excepthook
        sys.excepthook = lambda *error: (print("[rank0]:", file=sys.stderr), found(*error))
        microbatch_size(33, 5, what="argument 'x'", axis=0)
        """
    )
    lines = [line.removeprefix("[algo-1:0] ") for line in job.run()["algo-1"].lines]
    assert lines[:3] == ["[rank0]:", "Traceback (most recent call last):", '  File "train.py", line 6, in <module>']
    assert lines[4].startswith("herringbone_contract.errors.ParallelError: 5 microbatches do not divide a batch of 33")


@pytest.mark.parametrize("name", ["signal", "socket", "json", "types", "code", "attach", "traceback"])
def test_a_module_of_the_users_does_not_hide_pythons_from_the_wrapper(make_job, name: str) -> None:
    # `python -m` puts the working folder first: the wrapper once imported the user's own signal.py.
    job = make_job()
    job.write(f"import {name}; print({name}.mine) if {name!r} in ('code', 'attach', 'traceback') else print('yes')")
    (job.base() / "code" / f"{name}.py").write_text("mine = 'yes'")
    assert job.run()["algo-1"].lines == ["[algo-1:0] yes"]


@pytest.mark.parametrize("start", ["", "import linecache; "])
def test_a_module_of_the_users_does_not_hide_the_failure(make_job, start: str) -> None:
    job = make_job()
    job.write(f"{start}raise ValueError('my cause')")
    (job.base() / "code" / "linecache.py").touch()
    assert job.run()["algo-1"].failure.message == "my cause"


def test_a_save_in_the_background_that_failed_is_the_failure_of_a_script_that_ends(make_job, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = make_job()
    job.write(
        f"""
import sys, torch
from herringbone_parallel.torch.checkpoint import api
api.async_save({str(tmp_path / "saved")!r}, "a", {{"w": torch.ones(1)}}, on_complete=lambda: 1 / 0)
sys.exit(0)
"""
    )
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure.exception) == (1, "ZeroDivisionError")
    assert sum(line.startswith("[algo-1:0] ZeroDivisionError") for line in ended.lines) == 1


def test_a_module_entry_point_runs_as_main(make_job) -> None:
    job = make_job()
    job.write("", program="other.py")
    package = job.base() / "code" / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text("value = 7")
    (package / "__main__.py").write_text("from .data import value\nprint(__name__, value)\nraise SystemExit(4)")
    path = job.base() / "input" / "config" / "hyperparameters.json"
    path.write_text('{"sagemaker_program": "pkg"}')
    ended = job.run()["algo-1"]
    assert ended.lines[0] == "[algo-1:0] __main__ 7"
    assert ended.code == 4
    assert ended.failure.frames[-1].file.endswith("pkg/__main__.py")


def test_os_exit_of_a_forked_child_does_not_end_the_rank(make_job) -> None:
    job = make_job()
    job.write(
        "import os\npid = os.fork()\nif not pid: os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    ended = job.run()["algo-1"]
    assert (ended.code, ended.lines) == (0, ["[algo-1:0] 3"])


IN_A_FOLDER = """
    import multiprocessing, os, subprocess, sys
    import helper, twin, package.part

    def values(_=0):
        import helper, twin, package.part
        return [helper.value, twin.value, package.part.value]

    if __name__ == "__main__":
        print(values(), [os.path.relpath(path, os.environ["SM_BASE"]) for path in sys.path[:2]])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(values, [0]))
        child = "import package.part; print(package.part.value, __import__('twin').value)"
        subprocess.run([sys.executable, "-c", child], cwd="/")
"""


@pytest.mark.parametrize("launcher", ["plain", "torch_distributed", "mpi"])
def test_a_script_in_a_folder_finds_its_neighbours_and_the_code(make_job, mpirun, launcher: str) -> None:
    job = make_job(SM_BASE="")
    if launcher == "mpi":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun("openmpi5")
    strategy = {} if launcher == "plain" else {f"sagemaker_{launcher}_enabled": True}
    job.write(IN_A_FOLDER, program="scripts/train.py", **strategy)
    code = job.base() / "code"
    job.environment["SM_BASE"] = str(code)
    (code / "package").mkdir()
    for name, value in (("scripts/helper", 1), ("scripts/twin", 2), ("twin", 3), ("package/part", 4)):
        (code / f"{name}.py").write_text(f"value = {value}")
    assert job.run()["algo-1"].rank_lines == [
        "[algo-1:0] [1, 2, 4] ['scripts', '.']",
        "[algo-1:0] [[1, 2, 4]]",
        "[algo-1:0] 4 3",
    ]


def test_the_folder_of_a_script_is_pythons_choice(make_job) -> None:
    """Python takes the folder to which a link of the script leads, and none under PYTHONSAFEPATH."""
    job = make_job()
    job.write("import helper, sys; print(helper.value, sys.path[0] == sys.path[1])", program="real/train.py")
    code = job.base() / "code"
    (code / "real" / "helper.py").write_text("value = 1")
    (code / "helper.py").write_text("value = 2")
    (code / "linked.py").symlink_to("real/train.py")
    hyperparameters = job.base() / "input" / "config" / "hyperparameters.json"
    hyperparameters.write_text('{"sagemaker_program": "linked.py"}')
    assert job.run()["algo-1"].lines == ["[algo-1:0] 1 False"]
    if sys.version_info >= (3, 11):
        assert job.run(PYTHONSAFEPATH="1")["algo-1"].lines == ["[algo-1:0] 2 False"]


def test_a_shell_scripts_python_is_that_of_the_job(make_job) -> None:
    """Also where no shell has activated its environment."""
    job = make_job(PATH="/usr/bin:/bin")
    job.write("python -c 'import sys; print(sys.executable)'", program="run.sh")
    assert job.run()["algo-1"].lines == [f"[algo-1:0] {Path(sys.executable).with_name('python')}"]


def test_a_shell_scripts_pythons_find_the_code_and_write_at_once(make_job) -> None:
    job = make_job(PYTHON=sys.executable)
    job.environment.pop("PYTHONUNBUFFERED", None)
    job.write('cd / && "$PYTHON" "$ROOT/algo-1/ml/code/scripts/train.py"', program="scripts/run.sh")
    code = job.base() / "code"
    lost = "import os, signal, root\nprint(root.value)\nos.kill(os.getpid(), signal.SIGKILL)"
    (code / "scripts" / "train.py").write_text(lost)
    (code / "root.py").write_text("value = 5")
    assert job.run()["algo-1"].lines[0] == "[algo-1:0] 5"
    # Python buffers for a user who asks for it.
    assert job.run(PYTHONUNBUFFERED="")["algo-1"].lines[0] != "[algo-1:0] 5"


def test_a_rank_itself_writes_by_the_line(make_job) -> None:
    """Not by the piece, which would be two writes for each `print`: only its children have the variable."""
    job = make_job()
    job.environment.pop("PYTHONUNBUFFERED", None)
    job.write(
        "import os, sys; print(sys.stdout.write_through, sys.stdout.line_buffering, os.environ['PYTHONUNBUFFERED'])"
    )
    assert job.run()["algo-1"].lines == ["[algo-1:0] False True 1"]


def test_only_a_rank_can_import_smdistributed(make_job) -> None:
    job = make_job()
    job.write("import importlib.util; print(importlib.util.find_spec('smdistributed') is not None)")
    assert job.run()["algo-1"].lines == ["[algo-1:0] True"]
    answer = "import importlib.util; print(importlib.util.find_spec('smdistributed') is not None)"
    answered = subprocess.run([sys.executable, "-c", answer], capture_output=True, text=True, check=True)
    assert answered.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("steering", "says"),
    [
        (
            {"sagemaker_pytorch_xla_multi_worker_enabled": True},
            "distribution 'pytorch_xla' is not supported",
        ),
    ],
)
def test_launchers_of_later_releases_are_refused_by_name(make_job, steering: dict[str, object], says: str) -> None:
    job = make_job()
    job.write("print('never')", **steering)
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure.exception) == (1, "UnsupportedError")
    assert says in ended.failure_text


def test_a_program_that_cannot_run_gives_the_reason(make_job) -> None:
    job = make_job()
    job.write("#!/no/such/interpreter", program="run.sh")
    (job.base() / "code" / "run.sh").chmod(0o755)
    ended = job.run()["algo-1"]
    assert ended.code == 1
    assert ended.failure.exception == "FileNotFoundError"


def test_both_sides_spell_the_run_folder_alike() -> None:
    # A rank cannot afford to import the contract for one name.
    assert attach.RUN_FOLDER == HostVariable.RUN_FOLDER


@pytest.mark.parametrize("name", ["hyperparameters", "resourceconfig", "inputdataconfig"])
def test_a_damaged_contract_file_is_named(make_job, name: str) -> None:
    job = make_job()
    job.write("print('never')")
    (job.base() / "input" / "config" / f"{name}.json").write_text("{")
    ended = job.run()["algo-1"]
    assert (ended.code, ended.failure.exception) == (1, "ContractError")
    assert f"{name}.json" in ended.failure_text
