"""The start of a job: its time, and the imports that it must not wait for."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest


def first_line_seconds(job, **variables: str) -> float:
    began = time.time()
    ended = job.run(**variables)["algo-1"]
    assert ended.code == 0, ended.output
    return float(ended.lines[0].split()[-1]) - began


def test_p1_a_plain_scripts_first_line_comes_soon(make_job) -> None:
    seconds = []
    for _ in range(5):
        job = make_job()
        job.write("import time; print(time.time())")
        seconds.append(first_line_seconds(job))
    # The promise is 0.2 s on a quiet machine; this machine is shared.
    assert statistics.median(seconds) < 0.6


@pytest.mark.parametrize("distribution", [{}, {"sagemaker_torch_distributed_enabled": True}], ids=["plain", "torch"])
def test_p2_no_framework_is_imported_to_launch(make_job, tmp_path, distribution) -> None:
    for framework in ("torch", "tensorflow"):
        package = tmp_path / "fakes" / framework
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            "import os, pathlib; pathlib.Path(os.environ['ROOT'], f'imported-{__name__}-{os.getpid()}').touch()"
        )
    job = make_job(PYTHONPATH=str(tmp_path / "fakes"))
    job.write("import time; print(time.time())", **distribution)
    assert job.run()["algo-1"].code == 0
    assert not list(job.root.glob("imported-*"))


def imported(module: str, watched: list[str]) -> list[str]:
    """Return the watched modules that the import of `module` loads, in a Python of its own."""
    # -S: the .pth files of an editable install may import anything.
    paths = [path for path in sys.path if path]
    code = f"import sys; sys.path = {paths!r}; import {module}; print(*set(sys.modules) & {set(watched)})"
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.split()


def test_the_rank_wrapper_stays_lean() -> None:
    # Each of these costs every rank of every job milliseconds before its first line.
    heavy = ["msgspec", "dataclasses", "inspect", "pathlib", "subprocess", "asyncio", "ctypes", "logging"]
    assert imported("herringbone_entry.ranks.rank", heavy) == []


def test_stop_signals_are_handled_before_the_slow_imports() -> None:
    # The first process of a container ignored SIGTERM for its first tenth of a second.
    assert (
        imported("herringbone_entry.__main__", ["herringbone_entry.job", "herringbone_contract", "dataclasses"]) == []
    )


def test_the_supervisor_imports_only_modules_that_every_job_needs() -> None:
    rarely = ["subprocess", "tempfile", "random", "shutil", "tarfile", "traceback", "hmac", "secrets", "boto3"]
    rarely += ["msgspec", "threading", "ctypes", "asyncio", "logging", "herringbone_entry.channel.channel"]
    rarely += ["dataclasses", "inspect"]
    assert imported("herringbone_entry.job", rarely) == []
