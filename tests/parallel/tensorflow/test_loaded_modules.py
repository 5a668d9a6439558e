"""The modules that an import of each library loads, in a process of the Python with TensorFlow that has no other."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.parallel.tensorflow.ranks import PYTHON, environment

pytestmark = pytest.mark.tensorflow

PACKAGE = "herringbone_parallel.tensorflow."
DATA_PARALLEL = ["smdistributed.dataparallel.tensorflow", "horovod.tensorflow.keras", f"{PACKAGE}recipes.api"]
MODEL_PARALLEL = "smdistributed.modelparallel.tensorflow"
# An import of TensorFlow takes 4 s of a core, so one process imports it, and each library is imported by a fork of it.
PROGRAM = """
import importlib, json, os, sys
import keras, tensorflow
for name in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(name)
        print(json.dumps([name, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Return the modules of the adaptor that an import of each library loads, without their package."""
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    command = [PYTHON, "-c", PROGRAM, *DATA_PARALLEL, MODEL_PARALLEL]
    answer = subprocess.run(command, env=environment(), capture_output=True, check=True, timeout=100)
    modules = dict(json.loads(line) for line in answer.stdout.splitlines())
    return {
        library: [name.removeprefix(PACKAGE) for name in names if name.startswith(PACKAGE)]
        for library, names in modules.items()
    }


@pytest.mark.parametrize("library", DATA_PARALLEL)
def test_data_parallelism_loads_nothing_of_model_parallelism(loaded: dict[str, list[str]], library: str) -> None:
    modules = loaded[library]
    assert "data_parallel.state" in modules
    # Horovod's scripts are old ones, and their import repairs Keras.
    absent = ("model_parallel",) if library.startswith("horovod") else ("model_parallel", "keras_compat")
    assert [name for name in modules if name.startswith(absent)] == []


def test_model_parallelism_loads_only_the_sums_of_data_parallelism(loaded: dict[str, list[str]]) -> None:
    modules = loaded[MODEL_PARALLEL]
    assert "model_parallel.api" in modules
    assert [name for name in modules if name.startswith(("horovod", "recipes"))] == []
    # Replicas of a partition are averaged by these. `optimizer`, `tape` and the rest stay out.
    sums = ["", ".compression", ".gradients", ".reduction", ".state", ".variables"]
    assert [name for name in modules if name.startswith("data_parallel")] == [f"data_parallel{name}" for name in sums]
