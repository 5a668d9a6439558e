"""examples/keras_resnet: images as TensorFlow reads them, and the errors for wrong data."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_tensorflow import PYTHON, SOURCES
from tests.examples.conftest import EXAMPLES


@pytest.mark.tensorflow
def test_images(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    paths = [*SOURCES, str(EXAMPLES), str(EXAMPLES / "keras_resnet" / "src")]
    process = subprocess.run(
        [PYTHON, Path(__file__).with_name("keras_images.py"), tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-3_000:]
    answers = json.loads(process.stdout.splitlines()[-1])
    mixed, broken = answers.pop("mixed"), answers.pop("broken")
    assert answers == {
        "labels": [1, 0],
        "equal": True,
        "halved": [[1, 8, 8, 1], 0.5],
        "crops": [True, False],  # by the seed, the epoch and the image
        "png": [[1, 16, 16, 3], True],
    }
    assert "2.pgm has 1 colours, but" in mixed
    assert "broken/cat/1.png: TensorFlow cannot read this image" in broken
