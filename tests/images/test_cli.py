"""`herringbone images` on the command line."""

import json
import subprocess
import sys

import pytest


def test_other_verbs_import_no_module_of_images():
    code = (
        "import sys, herringbone.cli.__main__; print([name for name in sys.modules if 'herringbone.images.' in name])"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_a_mistake_is_found_before_the_engine_is_used(herringbone, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    code, out, err = herringbone("images", "build", "jax")
    assert (code, out) == (2, "")
    assert err == (
        "herringbone: framework 'jax': images are built for pytorch, tensorflow, mxnet, huggingface, sklearn, xgboost\n"
    )


def test_missing_requirements_are_reported_before_anything_is_built(herringbone, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    code, _, err = herringbone("images", "build", "pytorch", "--requirements", str(tmp_path / "none.txt"))
    assert (code, err) == (2, f"herringbone: {tmp_path}/none.txt: there is no such file\n")


@pytest.mark.parametrize("arguments", [["build", "pytorch"], ["ls"], ["test", "x"], ["push", "x", "y"], ["clean"]])
def test_without_an_engine(herringbone, monkeypatch, arguments):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    code, out, err = herringbone("images", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(
        "herringbone: no container engine answers. Tried:\n  DOCKER_HOST: unix:///nowhere: not there\n"
    )


@pytest.mark.docker
def test_local_images_are_listed(herringbone, image):
    code, out, _ = herringbone("images", "ls", "--json")
    (listed,) = (row for row in json.loads(out) if row["image"] == image)
    assert code == 0
    assert (listed["framework"], listed["device"], listed["requirements"]) == ("pytorch", "cpu", None)
    assert listed["size"] > 500_000_000
    assert image in herringbone("images", "ls")[1]


@pytest.mark.docker
def test_an_image_that_cannot_run_jobs_ends_with_1(herringbone, base_image):
    code, out, _ = herringbone("images", "test", base_image)
    assert code == 1
    assert out.splitlines()[1] == "FAILED   a job           the image has no program `train`: install Herringbone in it"
    code, out, _ = herringbone("images", "test", base_image, "--json")
    assert [finding["verdict"] for finding in json.loads(out)] == ["warning", "FAILED"]
