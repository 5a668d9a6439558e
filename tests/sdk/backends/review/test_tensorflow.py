"""The check, before a job starts, that TensorFlow is installed and new enough."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone import TensorFlow
from herringbone.backends.review.frameworks import missing_tensorflow, old_tensorflow
from herringbone.plan.plan import JobPlan

LIBRARY = {"smdistributed": {"dataparallel": {"enabled": True}}}
STRATEGIES = [
    {"parameter_server": {"enabled": True}},
    {"multi_worker_mirrored_strategy": {"enabled": True}},
]


def plan(folder: Path, distribution: dict, *, requirements: bool = False, **options: str) -> JobPlan:
    (folder / "train.py").touch()
    if requirements:
        (folder / "requirements.txt").write_text("tensorflow\n")
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=str(folder),
        instance_type="local_process",
        distribution=distribution,
        **options,
    )
    return plan_of(estimator._request, folder, backend="local_process")


@pytest.mark.parametrize("distribution", [LIBRARY, *STRATEGIES])
def test_a_python_without_tensorflow_is_named_before_the_job_starts(tmp_path, distribution) -> None:
    refused = missing_tensorflow(plan(tmp_path, distribution), lambda: None)["distribution"]
    assert refused.startswith("needs TensorFlow")
    assert f"ranks run in {sys.executable}, which has none: `pip install 'tensorflow>=2.16'`" in refused


@pytest.mark.parametrize(("version", "served"), [("2.15.1", False), ("2.16.0rc1", True), ("3.0", True), ("", True)])
def test_our_library_needs_the_tensorflow_of_keras_3(tmp_path, version: str, served: bool) -> None:
    refusals = missing_tensorflow(plan(tmp_path, LIBRARY), lambda: version)
    assert refusals == {} if served else "2.16 or newer, with Keras 3, and ranks" in refusals["distribution"]
    assert missing_tensorflow(plan(tmp_path, STRATEGIES[0]), lambda: version) == {}


def test_a_job_with_its_own_packages_or_without_tensorflow_is_served(tmp_path) -> None:
    assert missing_tensorflow(plan(tmp_path, {"mpi": {"enabled": True}}), lambda: None) == {}
    torch_plan = msgspec.structs.replace(plan(tmp_path, LIBRARY), estimator="PyTorch")
    assert missing_tensorflow(torch_plan, lambda: None) == {}
    assert missing_tensorflow(plan(tmp_path, LIBRARY, requirements=True), lambda: None) == {}


@pytest.mark.parametrize("version", ["2.3.1", "2.11", "1.15"])
def test_an_image_of_ours_with_an_old_tensorflow_is_refused_by_name(tmp_path, version: str) -> None:
    refused = old_tensorflow(plan(tmp_path, LIBRARY, framework_version=version))["framework_version"]
    assert refused.startswith(f"{version}: smdistributed needs TensorFlow 2.16 or newer, with Keras 3, in an image")
    assert old_tensorflow(plan(tmp_path, LIBRARY, framework_version=version, image_uri="aws/tensorflow")) == {}
    assert old_tensorflow(plan(tmp_path, STRATEGIES[0], framework_version=version)) == {}


@pytest.mark.parametrize("version", ["2.16", "2.21.0", "3.0", "2", None, "latest"])
def test_a_new_version_or_none_is_not_refused(tmp_path, version: str | None) -> None:
    options = {} if version is None else {"framework_version": version}
    assert old_tensorflow(plan(tmp_path, LIBRARY, **options)) == {}
