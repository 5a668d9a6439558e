"""A supervisor and its ranks load all that they need: the package may be removed while their job runs."""

from __future__ import annotations

import shutil
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
