"""A rank that the kernel kills for want of memory: its failure says so, with the peak and what to lower."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone_entry.supervisor import rank_group

LIMIT = 128 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a memory control group with a limit; without the right to, there is nothing to test."""
    mount = Path("/sys/fs/cgroup")
    first = mount / "memory" if (mount / "memory").is_dir() else mount
    folder = first / f"hb-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if first != mount else "memory.max")).write_text(str(LIMIT))
        for name in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            with contextlib.suppress(OSError):
                (folder / name).write_text(str(LIMIT) if "memsw" in name else "0")
    except OSError as error:
        pytest.skip(f"no control group of our own: {error}")
    yield folder
    # The last process leaves the group a moment after its end.
    for _ in range(50):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("message", "is_killed"),
    [
        ("Command '['convert', 'a.png']' died with <Signals.SIGKILL: 9>.", True),
        ("Command 'convert a.png' returned non-zero exit status 137.", True),
        ("DataLoader worker (pid 7) is killed by signal: Killed.", True),
        ("process 0 terminated with signal SIGKILL", True),
        ("A process in the process pool was terminated abruptly while the future was running or pending.", True),
        ("Command 'false' returned non-zero exit status 1.", False),
        ("code 1370", False),
    ],
)
def test_a_script_says_in_many_words_that_its_child_was_killed(message: str, is_killed: bool) -> None:
    assert (rank_group.KILLED_CHILD.search(message) is not None) == is_killed


@pytest.mark.parametrize("launcher", ["sagemaker_torch_distributed_enabled", "sagemaker_mpi_enabled"])
def test_a_rank_without_memory_is_named_with_peak_and_remedy(group: Path, make_job, mpirun, launcher: str) -> None:
    # The failure said `exit code 137, killed by SIGKILL` and nothing else.
    job = make_job(hosts=2, over="tcp", HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    entered = job.root / "entered"
    job.write(
        f"""
        import os, pathlib, time
        while not os.path.exists({str(entered)!r}):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            held = [bytearray(os.urandom(1 << 20)) for _ in range(1000)]
        time.sleep(60)
        """,
        **{launcher: True},
    )
    job.start("algo-1")
    # The second host alone is in the group: as a container, it has one of its own.
    code = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid())); "
    job.command = (job.command[0], "-c", code + "from herringbone_entry.__main__ import main; main()")
    job.start("algo-2")
    entered.touch()
    for result in job.wait().values():
        failure = result.failure
        assert (result.code, failure.host, failure.rank) == (137, "algo-2", 1)
        assert failure.message.startswith("out of memory: the kernel killed the process; this host used ")
        assert "of the 128 MiB that it may use; lower the batch size" in failure.message
