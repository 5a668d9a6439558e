"""The Mask R-CNN on MXNet: torchvision's losses, gradients and detections from the same weights and images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from herringbone_entry.preparation.shims import find_shim
from tests.e2e.test_mxnet import PYTHON
from tests.e2e.test_tensorflow import SOURCES
from tests.examples.conftest import EXAMPLES

PROGRAMS = Path(__file__).with_name("programs")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not PYTHON.exists():
        pytest.skip("there is no Python with MXNet: tests/mxnet/setup makes .venv-mxnet")
    folder = tmp_path_factory.mktemp("reference")
    # As in a job, torchvision is installed for this process only. It needs Pillow, too.
    files = [EXAMPLES / "mask_rcnn" / source / "requirements.txt" for source in ("src", "src_mxnet")]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
    ]
    requirements = [argument for file in files for argument in ("-r", file)]
    subprocess.run([*pip, "--target", folder / "packages", *requirements], check=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "packages")}
    reference = folder / "reference.npz"
    subprocess.run([sys.executable, PROGRAMS / "mask_rcnn_reference.py", reference], env=environment, check=True)
    # The compiled packages are for the other Python, whose version may differ.
    subprocess.run([PYTHON, "-m", *pip[2:], "--target", folder / "others", *requirements[-2:]], check=True)
    environment["PYTHONPATH"] = os.pathsep.join([*SOURCES, str(find_shim("horovod")), str(folder / "others")])
    program = [PYTHON, PROGRAMS / "mask_rcnn_on_mxnet.py", reference]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    shapes = json.loads(str(np.load(reference)["shapes"]))
    return {**json.loads(done.stdout.splitlines()[-1]), "torch's shapes": shapes}


def test_losses_and_gradients_are_those_of_torchvision(compared: dict[str, Any]) -> None:
    assert compared["losses"].keys() == {
        f"loss_{name}" for name in ("objectness", "rpn_box_reg", "classifier", "box_reg", "mask")
    }
    # torchvision computes one of the losses in fp32, also for a model in fp64.
    assert max(compared["losses"].values()) < 1e-6
    assert compared["gradient"] < 1e-6


def test_detections_are_those_of_torchvision_also_in_a_resized_image(compared: dict[str, Any]) -> None:
    assert len(compared["outputs"]) == 4 * 4
    # Masks are kept in fp32, and MXNet resizes images with coordinates in fp32.
    assert max(compared["outputs"].values()) < 1e-5


def test_the_full_model_has_the_layers_of_torchvision(compared: dict[str, Any]) -> None:
    assert compared["shapes"] == compared["torch's shapes"]


def test_lars_takes_the_steps_of_its_formula(compared: dict[str, Any]) -> None:
    assert compared["lars"] < 1e-12


def test_settings_that_only_torch_has_are_refused(compared: dict[str, Any]) -> None:
    precision, workers, weights = compared["refused"]
    assert precision.startswith("--precision bf16: on MXNet the examples compute in fp32")
    assert workers.startswith("--workers is for PyTorch; MXNet's script reads images in the rank")
    assert "which MXNet does not read" in weights
