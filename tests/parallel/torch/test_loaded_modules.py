"""Each library loads its own modules only: a data-parallel job must not pay for model parallelism, or the reverse.

The check runs in a fresh interpreter, because this one has loaded all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[3] / "parallel" / "shim"
LIBRARY = "herringbone_parallel.torch"


def loaded_by(module: str) -> list[str]:
    """Return the modules of this library for torch that an import loads under AWS's import path."""
    program = f"import {module}, sys; print(*(name for name in sys.modules if name.startswith({LIBRARY!r} + '.')))"
    environment = {**os.environ, "PYTHONPATH": str(SHIM)}
    # torch warns on standard error when numpy or a GPU is missing; only the names on standard output count.
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("module", "loaded", "foreign"),
    [
        ("smdistributed.dataparallel.torch.torch_smddp", "data_parallel", ["model_parallel"]),
        ("smdistributed.modelparallel.torch", "model_parallel", ["data_parallel", "horovod", "recipes"]),
    ],
)
def test_an_import_loads_no_module_of_the_other_libraries(module: str, loaded: str, foreign: list[str]) -> None:
    names = loaded_by(module)
    assert any(name.startswith(f"{LIBRARY}.{loaded}.") for name in names), "the import loads its own library"
    for library in foreign:
        assert [name for name in names if f"{name}.".startswith(f"{LIBRARY}.{library}.")] == []
