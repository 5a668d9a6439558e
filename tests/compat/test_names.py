"""`herringbone-sagemaker`: the import paths of AWS's SDK v2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone.convert.names import COUNTERPARTS, STAYS
from tests.compat.conftest import COMPAT

# What a notebook of SDK v2 writes, its cells one after another.
NOTEBOOK = """
import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.inputs import TrainingInput

session = sagemaker.Session()
role = sagemaker.get_execution_role()
inputs = session.upload_data(path="data", key_prefix="mnist")
estimator = PyTorch(
    entry_point="train.py",
    source_dir="code",
    role=role,
    framework_version="2.1.0",
    py_version="py310",
    instance_count=2,
    instance_type="ml.p3.2xlarge",
    sagemaker_session=session,
    debugger_hook_config=False,
    hyperparameters={"epochs": 1},
    distribution={"torch_distributed": {"enabled": True}},
)
estimator.fit({"training": TrainingInput(inputs)})
print("status", estimator.latest_training_job.describe()["TrainingJobStatus"])
print("model", estimator.model_data)
"""
TRAIN = """
import os
print("rank", os.environ["RANK"], "reads", open(os.environ["SM_CHANNEL_TRAINING"] + "/numbers").read())
open(os.environ["SM_MODEL_DIR"] + "/model", "w").write("1")
"""
NAMES = """
import json, sagemaker, herringbone, warnings
from sagemaker.estimator import Estimator, Framework
from sagemaker.huggingface import HuggingFace
from sagemaker.instance_group import InstanceGroup
from sagemaker.local import LocalSession
from sagemaker.mxnet.estimator import MXNet
from sagemaker.sklearn import SKLearn
from sagemaker.tensorflow import TensorFlow
from sagemaker.tuner import HyperparameterTuner, ContinuousParameter
from sagemaker.xgboost.estimator import XGBoost
from sagemaker.remote_function import remote

session = LocalSession()
session.config = {"local": {"local_code": True}}
answers = {
    "generic": repr(Estimator("image:1", "role", 2, "local", hyperparameters={"a": 1})),
    "kinds": [issubclass(kind, herringbone.Framework) for kind in (HuggingFace, SKLearn, XGBoost, TensorFlow, MXNet)],
    "same": [InstanceGroup is herringbone.InstanceGroup, remote is herringbone.remote,
             sagemaker.pytorch.PyTorch.__name__],
    "uri": HuggingFace("py310", "t.py", transformers_version="4.36.0", pytorch_version="2.1.0", role="r",
                       instance_count=1, instance_type="ml.p3.2xlarge").training_image_uri(),
    "sklearn": SKLearn("t.py", framework_version="1.2-1", instance_type="ml.m5.xlarge").training_image_uri(),
    "retrieved": sagemaker.image_uris.retrieve("pytorch", "eu-west-1", "2.1.0", "py310", "ml.m5.xlarge",
                                               image_scope="training"),
    "session": type(Estimator("image:1", instance_type="local").sagemaker_session).__name__,
    "given": Estimator("image:1", instance_type="local", sagemaker_session=session).sagemaker_session is session,
    "ways": [session.local_mode, sagemaker.Session().local_mode, sagemaker.Session().config],
    "s3_input": sagemaker.inputs.s3_input is sagemaker.inputs.TrainingInput,
}
earlier = {"epochs": "3", "sagemaker_program": "x", "sagemaker_region": "y", "_tuning_objective_metric": "z"}
again = TensorFlow(entry_point="t.py", instance_type="local", hyperparameters=earlier)
again.set_hyperparameters(**earlier)
answers["again"] = {name: again.hyperparameters()[name] for name in ("epochs", "sagemaker_program")}
image = Estimator("image:1", instance_type="local", hyperparameters=earlier)
answers["image"] = image.hyperparameters().keys() >= {*earlier}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    HuggingFace(entry_point="t.py", instance_type="local", job_name="a", metrics_definition=[])
answers["dropped"] = sorted(str(warning.message) for warning in warned)
for code in (
    "from sagemaker.pytorch import PyTorchModel; PyTorchModel(model_data='m')",
    "import sagemaker.workflow.pipeline; sagemaker.workflow.pipeline.Pipeline()",
    "type('Mine', (sagemaker.Model,), {})()",
    "LocalSession().create_model()",
    "Estimator('image:1', instance_type='local').deploy(1, 'ml.m5.large')",
    "Estimator('image:1', instance_type='local', rules=[1])",
    "Estimator('image:1', instance_type='local', image_uri_region='us-east-1')",
    "import sagemaker.chainer; sagemaker.chainer.Chainer('t.py')",
    "sagemaker.huggingface.TrainingCompilerConfig()",
    "from sagemaker.debugger import Rule, rule_configs; Rule.sagemaker(rule_configs.overfit())",
    "from sagemaker import KMeans; KMeans(k=2)",
    "sagemaker.job.TrainingJob.rule_job_summary(None)",
):
    try:
        exec(code)
    except (herringbone.UnsupportedError, herringbone.OptionError) as error:
        answers[code] = str(error)
for name in ("sagemaker.train", "sagemaker.core.resources"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


def test_the_names_are_herringbones_and_others_are_refused_by_name(run):
    done = run(NAMES, env={"AWS_REGION": "us-west-2"})
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert "image_uri='image:1'" in answers["generic"]
    assert "instance_count=2" in answers["generic"]
    assert answers["kinds"] == [True] * 5
    assert answers["same"] == [True, True, "PyTorch"]
    registry = "763104351884.dkr.ecr.us-west-2.amazonaws.com"
    tag = "2.1.0-transformers4.36.0-gpu-py310-cu121-ubuntu20.04"
    assert answers["uri"] == f"{registry}/huggingface-pytorch-training:{tag}"
    assert answers["sklearn"] == "246618743249.dkr.ecr.us-west-2.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3"
    assert answers["retrieved"].endswith("eu-west-1.amazonaws.com/pytorch-training:2.1.0-cpu-py310")
    for name in (
        "sagemaker.pytorch.PyTorchModel", "sagemaker.workflow.pipeline.Pipeline", "sagemaker.Model",
        "sagemaker.Session.create_model", "Estimator.deploy",
    ):  # fmt: skip
        assert any(str(text).startswith(f"{name}: Herringbone trains, and neither") for text in answers.values()), name
    # What trains, or watches a training, says what to do instead.
    texts = " ".join(str(text) for text in answers.values())
    for text in (
        "rules: ", "image_uri_region: no such option", "sagemaker.chainer.Chainer: there is no estimator for this",
        "TrainingCompilerConfig: SageMaker's training compiler", "rule_configs.overfit: SageMaker Debugger",
        "sagemaker.KMeans: AWS's own algorithms", "rule_job_summary: SageMaker Debugger",
    ):  # fmt: skip
        assert text in texts, text
    assert (answers["session"], answers["given"]) == ("Session", True)
    assert (answers["ways"], answers["s3_input"]) == ([True, False, None], True)
    # The hyperparameters of an earlier job of a script: its own are written anew. An image's program gets all of them.
    assert (answers["again"], answers["image"]) == ({"epochs": '"3"', "sagemaker_program": '"t.py"'}, True)
    # SDK v2 drops what it does not know, and a notebook may rely on that.
    assert [text.split(":")[0] for text in answers["dropped"]] == ["job_name", "metrics_definition"]
    # Scripts of version 3 look for its modules.
    assert answers["sagemaker.train"].startswith("sagemaker.train: no module of SDK v2")
    assert answers["sagemaker.core.resources"].startswith("sagemaker.core: no module of SDK v2")


def test_each_name_that_convert_renames_is_here(run):
    """A script runs with this package as it would run converted."""
    code = f"""
import importlib, herringbone
for name, ours in {COUNTERPARTS!r}.items():
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    assert found is getattr(herringbone, ours) or issubclass(found, getattr(herringbone, ours)), name
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_convert_knows_each_name_that_is_here(run):
    """A name is Herringbone's after a conversion, or stays with the reason that this package answers it."""
    code = f"""
import importlib, pkgutil, sagemaker
counterparts, stays = {set(COUNTERPARTS)!r}, {STAYS!r}
modules = [module.name for module in pkgutil.walk_packages(sagemaker.__path__, "sagemaker.") if "._" not in module.name]
assert len(modules) > 20, modules
for module in modules:
    for name, value in vars(importlib.import_module(module)).items():
        home = getattr(value, "__module__", None) or ""
        if not name.startswith("_") and home.startswith(("sagemaker.", "herringbone.")) and "._" not in home:
            assert f"{{module}}.{{name}}" in counterparts or module.split(".")[1] in stays, (module, name)
for name in sagemaker._NAMES:
    assert f"sagemaker.{{name}}" in counterparts or name in stays, name
for name in stays:
    assert name in sagemaker._NAMES or name in sagemaker._MODULES or name == "__version__", name
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_it_refuses_to_be_imported_next_to_the_real_one(run, tmp_path):
    real = tmp_path / "site" / "sagemaker-2.250.0.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: sagemaker\nVersion: 2.250.0\n")
    done = run("import sagemaker")
    assert done.returncode != 0
    assert "sagemaker 2.250.0 and herringbone-sagemaker are both installed" in done.stderr
    assert "pip install --force-reinstall sagemaker==2.250.0" in done.stderr


@pytest.mark.e2e
def test_a_notebook_of_sdk_v2_runs_unmodified(run, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers").write_text("1 2 3")
    done = run(NOTEBOOK, env={"HERRINGBONE_INSTANCE_TYPE": "local_process", "HERRINGBONE_ACCOUNT": "own"})
    assert done.returncode == 0, done.stderr
    assert "rank 0 reads 1 2 3" in done.stdout
    assert "rank 1 reads 1 2 3" in done.stdout
    assert "status Completed" in done.stdout
    # As with SDK v2, a model without output_path is in the default bucket.
    assert "model s3://sagemaker-us-east-1-000000000000/" in done.stdout


# accelerate 1.15 has bugs in front of its launcher for SageMaker, with every SDK: `accelerate launch` adds a key to the
# file that it then refuses (num_processes), and reads a member that its configuration lacks (parallelism_config).
ACCELERATE = """
from accelerate.commands.config.config_args import SageMakerConfig
from accelerate.commands.launch import launch_command_parser, sagemaker_launcher

config = SageMakerConfig(
    compute_environment="AMAZON_SAGEMAKER", distributed_type="NO", mixed_precision="no", use_cpu=False, debug=False,
    ec2_instance_type="ml.p3.2xlarge", iam_role_name="role", profile="default", transformers_version="4.36.0",
    pytorch_version="2.1.0", py_version="py310",
)
words = ["--mixed_precision", "no", "--dynamo_backend", "no", "code/train.py", "--epochs", "3"]
sagemaker_launcher(config, launch_command_parser().parse_args(words))
"""


@pytest.mark.e2e
@pytest.mark.huggingface
def test_accelerates_launcher_for_sagemaker_runs_here(run, tmp_path):
    python = Path(__file__).resolve().parents[2] / ".venv-huggingface" / "bin" / "python"
    if not python.exists():
        pytest.skip("no accelerate: run tests/huggingface/setup")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import sys; print('arguments', sys.argv[1:])\n")
    done = run(ACCELERATE, python=str(python), env={"HERRINGBONE_INSTANCE_TYPE": "local_process"})
    assert done.returncode == 0, done.stderr
    assert "arguments ['--epochs', '3']" in done.stdout
    assert "You can find your model data at:" in done.stdout


def test_the_wheel_says_that_sagemaker_is_installed(tmp_path):
    build = [sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(COMPAT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    listed = json.loads(subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True).stdout)
    assert {entry["name"]: entry["version"] for entry in listed} == {
        "herringbone-sagemaker": "0.1.0",
        "sagemaker": "2.257.7+herringbone",
    }
    # Without a list of its files, pip cannot replace it by the real one.
    refused = subprocess.run([*pip, "uninstall", "--yes", "sagemaker"], capture_output=True, text=True)
    assert refused.returncode != 0
    assert "installed by herringbone-sagemaker" in refused.stderr + refused.stdout
    subprocess.run([*pip, "uninstall", "--yes", "--quiet", "herringbone-sagemaker"], check=True)
    assert json.loads(subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True).stdout) == []
