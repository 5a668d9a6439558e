"""The estimator for MXNet: its hyperparameters, and the checks before a job starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.plans import plan_of

from herringbone import MXNet
from herringbone.backends.registry import backend_for
from herringbone.backends.review.frameworks import missing_mxnet
from herringbone.images.recipe import make_recipe
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import DistributionError, OptionError

PARAMETER_SERVER = {"parameter_server": {"enabled": True}}


def plan(folder: Path, *, entry_point: str = "train.py", requirements: bool = False) -> JobPlan:
    (folder / entry_point).touch()
    if requirements:
        (folder / "requirements.txt").write_text("mxnet\n")
    estimator = MXNet(entry_point, source_dir=str(folder), instance_type="local_process")
    return plan_of(estimator._request, folder, backend="local_process")


def test_arguments_have_sagemakers_order_and_servers_are_marked_as_mxnets() -> None:
    estimator = MXNet(
        "train.py",
        "1.9.1",
        "py3",
        "src",
        {"epochs": 3},
        None,
        PARAMETER_SERVER,
        instance_type="local",
        instance_count=2,
    )
    assert estimator.options.framework_version == "1.9.1"
    encoded = estimator.hyperparameters()
    assert (encoded["epochs"], encoded["sagemaker_parameter_server_enabled"]) == ("3", "true")
    assert json.loads(encoded["sagemaker_parameter_server_framework"]) == "mxnet"
    without = MXNet("train.py", instance_type="local", distribution={"mpi": {"enabled": True}}).hyperparameters()
    assert "sagemaker_parameter_server_framework" not in without


def test_a_strategy_that_aws_ignores_for_mxnet_is_refused() -> None:
    with pytest.raises(DistributionError, match=r"not a strategy of mxnet.*mxnet can use: mpi, parameter_server"):
        MXNet("t.py", instance_type="local", distribution={"smdistributed": {"dataparallel": {"enabled": True}}})


@pytest.mark.parametrize(
    ("mxnet", "numpy", "message"),
    [
        (
            None,
            "1.23.5",
            f"not there: ranks run in {sys.executable}, which has none: `pip install mxnet==1.9.1 'numpy<1.24'`",
        ),
        ("1.9.1", "1.24.0", f"needs a numpy older than 1.24, and ranks run in {sys.executable}, which has 1.24.0: "),
        ("1.9.1", "2.3.1", "needs a numpy older than 1.24"),
        ("", None, "needs a numpy older than 1.24"),
        ("1.9.1", "1.23.5", None),
    ],
)
def test_a_python_that_cannot_import_mxnet_is_named_before_the_job_starts(tmp_path, mxnet, numpy, message) -> None:
    refused = missing_mxnet(plan(tmp_path), lambda: (mxnet, numpy))
    assert refused == {} if message is None else message in refused["MXNet"]


def test_a_job_with_its_own_packages_is_served(tmp_path) -> None:
    assert missing_mxnet(plan(tmp_path, requirements=True), lambda: (None, None)) == {}
    (tmp_path / "requirements.txt").unlink()
    assert missing_mxnet(plan(tmp_path, entry_point="run.sh"), lambda: (None, None)) == {}


def test_images_are_built_for_cpus_alone() -> None:
    assert make_recipe("mxnet").version == "1.9.1"
    with pytest.raises(OptionError, match="device 'cuda': images of mxnet are built for cpu"):
        make_recipe("mxnet", device="cuda")


def test_sagemaker_needs_an_image_and_the_message_names_the_command(tmp_path) -> None:
    (tmp_path / "train.py").touch()
    estimator = MXNet(str(tmp_path / "train.py"), instance_type="ml.c5.xlarge", role="arn:role")
    assert backend_for("ml.c5.xlarge").name == "sagemaker"
    with pytest.raises(OptionError, match=r"image_uri: missing.*`herringbone images build mxnet` and push it"):
        estimator.plan()
