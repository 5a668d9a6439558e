"""Every hook into TensorFlow and Keras bites, and is refused by name where it does not bite."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from herringbone_contract.library_hooks import Hook
from herringbone_parallel.tensorflow import library_hooks
from tests.parallel.tensorflow.ranks import PYTHON, environment

NAMES = [name for name, value in vars(library_hooks).items() if isinstance(value, tuple) and isinstance(value[0], Hook)]
PROGRAM = f"""
import tensorflow
from herringbone_parallel.tensorflow import library_hooks
from tests.library_hooks import problems
for name in {NAMES}:
    print(name, problems(getattr(library_hooks, name)))
"""


@pytest.mark.tensorflow
def test_a_hook_that_does_not_bite_is_refused_by_name() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    variables = environment()
    variables["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[3]}"
    answer = subprocess.run(
        [PYTHON, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.stdout == "".join(f"{name} []\n" for name in NAMES), answer.stdout + answer.stderr
