"""The modules that an import of each library loads, in a fresh interpreter of the Python with TensorFlow."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.parallel.tensorflow.ranks import PYTHON, environment

pytestmark = pytest.mark.tensorflow

PACKAGE = "herringbone_parallel.tensorflow."


def loaded(module: str) -> list[str]:
    """Import a module in a new process; return the modules of the adaptor that this loads, without their package."""
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([PYTHON, "-c", program], env=environment(), capture_output=True, check=True, timeout=100)
    names = json.loads(answer.stdout.splitlines()[-1])
    return [name.removeprefix(PACKAGE) for name in names if name.startswith(PACKAGE)]


@pytest.mark.parametrize(
    "module", ["smdistributed.dataparallel.tensorflow", "horovod.tensorflow.keras", f"{PACKAGE}recipes.api"]
)
def test_data_parallelism_loads_nothing_of_model_parallelism(module: str) -> None:
    modules = loaded(module)
    assert "data_parallel.state" in modules
    assert [name for name in modules if name.startswith(("model_parallel", "keras_compat"))] == []


def test_model_parallelism_loads_only_the_sums_of_data_parallelism() -> None:
    modules = loaded("smdistributed.modelparallel.tensorflow")
    assert "model_parallel.api" in modules
    assert [name for name in modules if name.startswith(("horovod", "recipes"))] == []
    # Replicas of a partition are averaged by these. `optimizer`, `tape` and the rest stay out.
    sums = ["", ".compression", ".gradients", ".reduction", ".state", ".variables"]
    assert [name for name in modules if name.startswith("data_parallel")] == [f"data_parallel{name}" for name in sums]
