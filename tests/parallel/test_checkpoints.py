"""The job's folder of checkpoints has one variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from herringbone_parallel.checkpoints import checkpoint_dir

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "/opt/ml/checkpoints"),
        ({"SAGEMAKER_BASE_DIR": "/jobs/a/ml"}, "/jobs/a/ml/checkpoints"),
        ({"SAGEMAKER_BASE_DIR": "/jobs/a/ml", "SM_CHECKPOINT_DIR": "/kept"}, "/kept"),
    ],
)
def test_the_variable_comes_first(variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAGEMAKER_BASE_DIR", "SM_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert checkpoint_dir() == Path(folder)


def test_no_example_docstring_or_default_writes_to_the_containers_folder() -> None:
    quoted = re.compile(r"""["']/opt/ml/checkpoints["']""")
    files = [
        path for folder in ("parallel", "examples", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    found = [str(path) for path in files if path.suffix in (".py", ".md") and quoted.search(path.read_text("utf-8"))]
    assert found == []
