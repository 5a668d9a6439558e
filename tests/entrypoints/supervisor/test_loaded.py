"""A supervisor and its ranks load all that they need: the package may be removed while their job runs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import herringbone_contract
import herringbone_entry

REMOVES_THE_PACKAGE = """
import os, shutil, time
if os.environ["RANK"] != "0":
    time.sleep(60)
time.sleep(1)
shutil.rmtree(os.environ["PACKAGES"])
raise ValueError("too late")
"""


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_failure_is_recorded_when_the_package_is_gone(make_job, tmp_path: Path, hosts: int) -> None:
    packages = tmp_path / "packages"
    for package in (herringbone_contract, herringbone_entry):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    job = make_job(hosts=hosts, PACKAGES=str(packages), PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1")
    job.write(REMOVES_THE_PACKAGE, sagemaker_torch_distributed_enabled=True)
    for ended in job.run().values():
        assert ended.failure is not None, ended.lines
        assert (ended.failure.rank, ended.failure.exception, ended.failure.message) == (0, "ValueError", "too late")


def test_all_modules_for_a_failure_are_loaded_after_the_start() -> None:
    """The list for the start has each module that the supervisor imports late, to describe a failure."""
    rooms = Path(str(herringbone_entry.__file__)).parent / "supervisor"
    texts = [(rooms / name).read_text() for name in ("ending.py", "rank_group.py")]
    imported = {
        f"{node.module}.{alias.name}" if node.module.endswith(("supervisor", "contract")) else node.module
        for text in texts
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    program = (
        "import sys; from herringbone_entry.supervisor.ending import load_modules; load_modules(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert imported - set(loaded) == set()
    assert "herringbone_entry.health.memory" in imported
