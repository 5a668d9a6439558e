"""A request: made, stored, changed, and taken out of plans."""

import copy
import json

import msgspec
import pytest
from tests.plans import plan_of

from herringbone import DistributionError, Estimator, OptionError, PyTorch, TensorFlow
from herringbone.api.libraries import ESTIMATORS
from herringbone.plan.arguments import Arguments
from herringbone.plan.inputs import TrainingInput
from herringbone.plan.request import _CLASSES, JobRequest, changed, keywords, make_request, parse_request, request_of
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import ContinuousParameter
from herringbone.tuner.trial_plan import trial_request
from herringbone.tuner.trials import Proposal

PLACE = {"entry_point": "train.py", "source_dir": "src", "instance_type": "local_process", "instance_count": 2}
MINE = {"environment": {"A_TOKEN": "hunter2"}, "hyperparameters": {"lr": 0.1, "api_key": "hunter2"}}
OF_CLASS = {
    "TensorFlow": {"model_dir": False, "distribution": {"mpi": {"enabled": True, "processes_per_host": 2}}},
    "HuggingFace": {"transformers_version": "4.36.0", "pytorch_version": "2.1.0"},
    "PyTorch": {"distribution": "torch_distributed", "framework_version": "2.1", "max_run": "1h"},
    "MXNet": {"distribution": "parameter_server"},
    "SKLearn": {"instance_count": 1},
    "XGBoost": {"slurm": {"account": "a"}, "track": "mlflow:http://ml:5000/a"},
    "Estimator": {"git_config": {"repo": "https://h/r.git", "commit": "a" * 40}, "source_dir": None},
}


@pytest.mark.parametrize("name", OF_CLASS)
def test_each_class_makes_the_same_request_of_what_it_asked_for(name):
    asked = ESTIMATORS[name](**{**PLACE, **OF_CLASS[name]})._request
    assert asked.estimator == name
    assert ESTIMATORS[name].of(asked)._request == asked == make_request(name, keywords(asked))


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_request_is_stored_sent_and_taken_out_of_its_plan(name, tmp_path):
    asked = make_request(name, {**PLACE, **OF_CLASS[name]})
    plan = plan_of(asked, tmp_path, inputs={"a": "data", "b": TrainingInput("s3://b/c", "ShardedByS3Key")})
    found = request_of(plan)
    assert parse_request(json.loads(json.dumps(found.to_dict()))) == found
    assert parse_request(found.to_send()) == found
    # Its paths are absolute, and another plan of it is the same plan.
    assert found.channels[0].input.s3_data == f"{tmp_path}/data"
    folder = "/elsewhere" if found.options.git_config is None else tmp_path
    again = plan_of(msgspec.structs.replace(found, channels=()), folder)
    assert (again.hyperparameters, again.distribution) == (plan.hyperparameters, plan.distribution)
    assert (again.hosts, again.arguments) == (plan.hosts, plan.arguments)


def test_a_request_names_a_class_that_an_estimator_has():
    assert set(_CLASSES) == ESTIMATORS.keys() == OF_CLASS.keys()


def test_a_stored_request_has_no_secrets_and_a_sent_one_has_them():
    asked = make_request("PyTorch", {**PLACE, **MINE})
    assert "hunter2" not in json.dumps(asked.to_dict())
    assert parse_request(asked.to_send()) == asked


def test_what_is_set_on_an_estimator_is_used_or_refused():
    """It was kept next to the hosts that the constructor had made of the earlier value."""
    estimator = PyTorch(**PLACE)
    estimator.instance_count = 3
    estimator.image_uri = "mine:1"
    assert (estimator._request.arguments.instance_count, estimator.image_uri) == (3, "mine:1")
    with pytest.raises(OptionError, match="instance_count: expected int >= 1"):
        estimator.instance_count = 0
    assert estimator.instance_count == 3
    estimator.max_run, estimator.environment, estimator.distribution = "2h", {"A": "b"}, "torch_distributed"
    assert (estimator.options.max_run, estimator.max_run, estimator.environment) == (7200, 7200, {"A": "b"})
    assert estimator.distribution.launcher.value == "torch_distributed"
    with pytest.raises(OptionError, match="options: set each option by its own name"):
        estimator.options = None
    with pytest.raises(DistributionError, match="distribution: no strategy 'mp'"):
        estimator.distribution = "mp"
    with pytest.raises(AttributeError, match="'PyTorch' object has no attribute 'model_dir'"):
        print(estimator.model_dir)
    estimator.mine = estimator.model_dir = 1
    assert (estimator.mine, copy.copy(estimator).max_run) == (1, 7200)


def test_a_constructor_of_the_user_may_set_attributes_of_any_name_first():
    class Mine(PyTorch):
        def __init__(self, backend="gloo", **options):
            self.backend, self.source_dir, self.distribution, self.options = backend, "mine", {}, options
            assert self.source_dir == "mine"
            super().__init__(hyperparameters={"backend": self.backend}, **options)
            self.request = self.asked = 1

    mine = Mine(**PLACE)
    assert (mine.backend, mine.request, mine.source_dir, mine.options.max_run) == ("gloo", 1, "src", 86400)
    assert mine._request.arguments.hyperparameters == {"backend": "gloo"}


def test_jobs_of_users_classes_of_an_earlier_release_have_a_class_of_ours():
    def class_of(**arguments):
        return request_of(JobRequest(estimator="Mine", arguments=Arguments(**arguments), folder="/")).estimator

    assert class_of(entry_point="a") == "Estimator"
    assert (class_of(model_dir="/m"), class_of(model_dir=False)) == ("TensorFlow", "TensorFlow")
    assert class_of(transformers_version="4.36.0") == "HuggingFace"


def test_a_class_of_the_user_is_the_class_that_it_is_made_of():
    class Mine(TensorFlow):
        pass

    asked = Mine(**PLACE, model_dir="/m")._request
    assert (asked.estimator, asked.arguments.model_dir) == ("TensorFlow", "/m")
    assert type(Mine.of(asked)) is Mine


def test_a_constructor_that_takes_other_arguments_is_named():
    class Mine(Estimator):
        def __init__(self, script):
            super().__init__(script, instance_type="local_process")

    with pytest.raises(OptionError, match="Mine: its constructor does not take the arguments entry_point, instance_"):
        Mine.of(Mine("train.py")._request)


@pytest.mark.parametrize("name", ["HuggingFace", "TensorFlow"])
def test_a_trial_is_of_the_class_of_its_search(name, tmp_path):
    """Trials of HuggingFace were made by `Estimator`, which refuses its versions; those of a user's class, too."""
    shared = make_request(name, {**PLACE, **OF_CLASS[name], "hyperparameters": {"lr": 1.0, "epochs": 3}})
    definition = TuningDefinition(name="a", metric="loss", ranges={"lr": ContinuousParameter(0, 1)})
    trial = trial_request(shared, definition, Proposal(0, {"lr": 0.5}), job="a-001", checkpoints="/c/a-001")
    plan = plan_of(trial, tmp_path)
    assert (plan.estimator, plan.hyperparameters["lr"], plan.hyperparameters["epochs"]) == (name, "0.5", "3")
    assert plan.options.checkpoint_s3_uri == "/c/a-001"
    assert plan.arguments.transformers_version == OF_CLASS[name].get("transformers_version")


def test_a_session_stays_with_a_changed_request():
    session = object()
    asked = make_request("PyTorch", {**PLACE, "sagemaker_session": session})
    assert changed(asked, {"max_run": 60}).options.sagemaker_session is session
