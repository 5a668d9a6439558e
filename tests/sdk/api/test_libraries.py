"""`HuggingFace`, `SKLearn`, `XGBoost` and `Framework`: SDK v2's constructors, and what each setting does."""

import pytest

from herringbone import Estimator, Framework, HuggingFace, PyTorch, SKLearn, TensorFlow, XGBoost
from herringbone.api.planning import plan_request
from herringbone.aws.image_uris import image_uri
from herringbone.backends.process.review import review
from herringbone.backends.review.frameworks import missing_package
from herringbone.plan.frameworks import image_version, script_framework
from herringbone.plan.request import make_request
from herringbone_contract.errors import DistributionError, OptionError, UnsupportedError

PLACE = {"instance_type": "local_process", "instance_count": 1}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")
    return "train.py"


def test_the_order_of_arguments_is_that_of_sdk_v2():
    assert repr(
        HuggingFace("py310", "t.py", "4.36.0", None, "2.1.0", "src", {"a": 1}, image_uri="i:1", **PLACE)
    ).startswith(
        "HuggingFace('t.py', source_dir='src', image_uri='i:1', instance_type='local_process', instance_count=1"
    )
    assert SKLearn("t.py", "1.2-1", "py3", "src", {"a": 1}, **PLACE).options.framework_version == "1.2-1"
    assert XGBoost("t.py", "3.0-5", "src", {"a": 1}, "py3", **PLACE).source_dir == "src"
    assert Framework("t.py", "src", {"a": 1}, **PLACE).hyperparameters()["a"] == "1"


def test_each_framework_is_a_framework():
    for kind in (PyTorch, TensorFlow, HuggingFace, SKLearn, XGBoost):
        assert issubclass(kind, Framework)
    assert issubclass(Framework, Estimator)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: HuggingFace("t.py", **PLACE), OptionError, "first argument is py_version"),
        (
            lambda: HuggingFace("py3", "t.py", pytorch_version="2.1", tensorflow_version="2.6", **PLACE),
            OptionError,
            "one of them",
        ),
        (lambda: HuggingFace("py3", "t.py", framework_version="2", **PLACE), OptionError, "give transformers_version"),
        (lambda: HuggingFace("py3", "t.py", pytorch_version=2.1, **PLACE), OptionError, "expected text"),
        (
            lambda: HuggingFace("py3", "t.py", distribution={"parameter_server": {"enabled": True}}, **PLACE),
            DistributionError,
            "not a strategy of huggingface",
        ),
        (lambda: SKLearn("t.py", instance_type="local_process", instance_count=2), OptionError, "set instance_count=1"),
        (
            lambda: SKLearn("t.py", distribution={"mpi": {"enabled": True}}, **PLACE),
            OptionError,
            "SKLearn's scripts run",
        ),
        (lambda: XGBoost("t.py", image_uri_region="us-east-1", **PLACE), OptionError, "named by image_uri"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_plan_names_versions_that_choose_no_image(script):
    plan = _planned(HuggingFace("py310", script, "4.36.0", None, "2.1.0", **PLACE))
    assert image_version(plan) == "4.36.0"
    assert review(plan, package=lambda *_, **__: "5.0") == ("py_version", "pytorch_version", "transformers_version")
    # An `attach` makes the same estimator again.
    assert plan.arguments.pytorch_version == "2.1.0"


@pytest.mark.parametrize(
    ("kind", "package"), [(HuggingFace, "transformers"), (SKLearn, "scikit-learn"), (XGBoost, "xgboost")]
)
def test_a_missing_library_is_refused_with_the_command_that_installs_it(script, kind, package):
    plan = _planned(kind(entry_point=script, **PLACE))
    refusals = missing_package(plan, lambda *_, **__: None)
    assert f"`pip install {package}`" in refusals[kind.__name__]
    assert missing_package(plan, lambda *_, **__: "1.0") == {}


def _planned(estimator):
    """Return the estimator's plan for a backend that finds every package."""
    backend = estimator._backend
    backend.review = lambda plan: review(plan, package=lambda *_, **__: "1.0")
    return plan_request(estimator._asked(None), backend)


def test_hugging_faces_script_uses_the_framework_of_its_version():
    given = {"entry_point": "train.py", **PLACE}
    found = [script_framework(make_request(name, given)) for name in ("HuggingFace", "PyTorch", "XGBoost")]
    assert found == ["pytorch", "pytorch", None]
    assert script_framework(make_request("HuggingFace", {**given, "tensorflow_version": "2.6.3"})) == "tensorflow"


@pytest.mark.parametrize(
    ("settings", "tag"),
    [
        ({"framework": "xgboost", "version": "1.0-1"}, "sagemaker-xgboost:1.0-1-cpu-py3"),
        ({"framework": "xgboost", "version": "3.0-5"}, "sagemaker-xgboost:3.0-5"),
        ({"framework": "tensorflow", "version": "2.12", "py_version": "py310"}, "tensorflow-training:2.12-cpu-py310"),
        (
            {"framework": "pytorch", "version": "2.3.0", "py_version": "py311", "instance_type": "ml.p9.huge"},
            "pytorch-training:2.3.0-gpu-py311",
        ),
    ],
)
def test_names_of_awss_images(settings, tag):
    assert image_uri(region="us-west-2", **settings).endswith(f".dkr.ecr.us-west-2.amazonaws.com/{tag}")


def test_china_has_another_registry():
    assert image_uri("mxnet", region="cn-north-1", version="1.9.0", py_version="py38").startswith(
        "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/"
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"framework": "pytorch", "version": None}, OptionError),
        ({"framework": "pytorch", "version": "1.8.0"}, OptionError),
        ({"framework": "pytorch", "version": "1.1.0", "py_version": "py3"}, UnsupportedError),
        ({"framework": "xgboost", "version": "latest"}, UnsupportedError),
        ({"framework": "linear-learner", "version": None}, UnsupportedError),
        ({"framework": "jax", "version": "1"}, UnsupportedError),
        ({"framework": "huggingface", "version": "4.36.0", "base_version": "pytorch1.0"}, UnsupportedError),
        ({"framework": "huggingface", "version": "4.36.0", "base_version": "pytorch2.1.0"}, UnsupportedError),
    ],
)
def test_an_image_that_is_not_known_is_refused(settings, error):
    with pytest.raises(error):
        image_uri(region="us-west-2", **settings)
