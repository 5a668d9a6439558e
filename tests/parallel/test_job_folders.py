"""Each folder of the job has one variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from herringbone_parallel.job_folders import checkpoint_dir, model_dir

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
    monkeypatch.delenv("SM_MODEL_DIR", raising=False)
    assert checkpoint_dir() == Path(folder)
    assert model_dir() == Path(variables.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "model")
    monkeypatch.setenv("SM_MODEL_DIR", "/packed")
    assert model_dir() == Path("/packed")


def test_no_example_docstring_or_default_writes_to_the_containers_folder() -> None:
    quoted = re.compile(r"""["']/opt/ml/(checkpoints|model)\b""")
    files = [
        path for folder in ("parallel", "examples", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    found = [str(path) for path in files if path.suffix in (".py", ".md") and quoted.search(path.read_text("utf-8"))]
    assert found == []
