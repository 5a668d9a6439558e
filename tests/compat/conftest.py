"""The names of compat/ without an installation: the folder on the path, and the metadata that its wheel has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "compat"
# The Python of tests/huggingface/setup has the packages of .venv, and not its editable installation of Herringbone.
PACKAGES = [str(ROOT / name) for name in ("sdk", "contract", "entrypoints", "parallel")]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script in a folder of its own with the names on its path: `run("print(1)", python=..., env={...})`.

    In a process, because `sagemaker` must not be in this one.
    """
    site = tmp_path / "site"
    metadata = site / "sagemaker-2.257.7+herringbone.dist-info"
    metadata.mkdir(parents=True)
    shutil.copyfile(COMPAT / "provides" / "METADATA", metadata / "METADATA")
    for package in ("sagemaker", "sagemaker_containers", "sagemaker_training", "sagemaker_xgboost_container"):
        if (COMPAT / package).is_dir():
            (site / package).symlink_to(COMPAT / package)

    def run(*words: str, python: str = sys.executable, env: dict[str, str] | None = None):
        environ = {
            **os.environ,
            "PYTHONPATH": ":".join([str(site), *PACKAGES]),
            "HERRINGBONE_HOME": str(tmp_path / "home"),
            "HERRINGBONE_SLOTS": str(tmp_path / "slots"),
            **(env or {}),
        }
        command = [python, "-c", *words] if len(words) == 1 else [python, *words]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=110)

    return run
