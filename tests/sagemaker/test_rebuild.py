"""A job that this machine never saw, rebuilt from what the service tells of it: planned again, it is the same job.

Each golden request of the peer, and ours of the same call, is described as the service would, rebuilt and planned.
"""

import json

import pytest

import herringbone
from herringbone.backends.sagemaker.rebuild import ANSWERED, rebuild
from herringbone.backends.sagemaker.request import training_job_request
from herringbone.estimators.options import given_options
from herringbone.planning.plan import parse_plan
from tests.sagemaker.planning import planned
from tests.sagemaker.service import described
from tests.sagemaker.test_peer import CASES, NAMES, fields, here, meaning, ours, theirs  # noqa: F401 - `here` is used

MADE = [case for case in CASES if "we_refuse" not in case and "error" not in theirs(case)]
# DescribeTrainingJob has no such members; tags are asked for by ListTags.
NOT_DESCRIBED = ("Tags", "SessionChainingConfig")
DIFFERS = {
    "spot": {"CheckpointConfig.LocalPath"},  # the service tells its default, which then is sent
    "session-tag-chaining": {"SessionChainingConfig.EnableSessionTagChaining"},  # the service does not tell
    # The type of the hosts that train, where the peer sends null.
    "instance-groups-training-on-one": {"HyperParameters.sagemaker_instance_type"},
}


def again(request, kind):
    """Describe a request as the service does, rebuild it, plan the estimator, and return the new request."""
    members = {name: value for name, value in request.items() if name not in NOT_DESCRIBED}
    told = described(request["TrainingJobName"], **members)
    # As the service does where nothing was asked for.
    for name in ("EnableNetworkIsolation", "EnableManagedSpotTraining", "EnableInterContainerTrafficEncryption"):
        told.setdefault(name, False)
    told["OutputDataConfig"] = {"KmsKeyId": "", "CompressionType": "GZIP", **told["OutputDataConfig"]}
    if "CheckpointConfig" in told:
        told["CheckpointConfig"] = {"LocalPath": "/opt/ml/checkpoints", **told["CheckpointConfig"]}
    plan = rebuild(json.loads(json.dumps(told)), request.get("Tags", ()), kind=kind)
    plan = parse_plan(plan.to_dict())  # as the index keeps it
    given = {"entry_point": None, "image_uri": None, **plan.arguments, **given_options(plan.options)}
    # planning adds the channel of `model_uri` by itself
    model = plan.options.model_channel_name if plan.options.model_uri is not None else None
    channels = [channel for channel in plan.channels if channel.name != model]
    inputs = {channel.name: channel.file_system or channel.input for channel in channels}
    return training_job_request(planned(inputs, kind=getattr(herringbone, kind), **given), NAMES)


def differing(one, other):
    one, other = dict(fields(one)), dict(fields(other))
    return {
        place: (one.get(place), other.get(place))
        for place in one.keys() | other.keys()
        if meaning(place, one.get(place)) != meaning(place, other.get(place))
    }


@pytest.mark.parametrize("case", MADE, ids=[case["name"] for case in MADE])
def test_ours_is_the_same_job_again(case):
    request = ours(case)
    differs = DIFFERS.get(case["name"], set()) - {"HyperParameters.sagemaker_instance_type"}
    assert differing(request, again(request, case["estimator"])).keys() == differs


@pytest.mark.parametrize("case", MADE, ids=[case["name"] for case in MADE])
def test_the_peers_is_the_same_job_again(case):
    request = theirs(case)
    assert differing(request, again(request, case["estimator"])).keys() == DIFFERS.get(case["name"], set())


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0-gpu", "PyTorch"),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone/tensorflow:2.21", "TensorFlow"),
        ("mine:1", "Estimator"),
    ],
)
def test_the_images_name_tells_the_estimator(image, kind):
    assert rebuild(described("a", AlgorithmSpecification={"TrainingImage": image})).estimator == kind


def test_hyperparameters_that_mean_nothing_here_stay_as_they_are():
    foreign = {"sagemaker_mpi_enabled": "true", "sagemaker_parameter_server_enabled": "true", "epochs": "3"}
    plan = rebuild(described("a", HyperParameters=foreign))
    assert (plan.launcher, plan.hyperparameters) == ("plain", foreign)
    assert plan.arguments["hyperparameters"] == {"epochs": 3, **dict.fromkeys(list(foreign)[:2], True)}


def test_all_that_is_only_answered_is_left_out():
    botocore = pytest.importorskip("botocore.session", reason="the extra aws is not installed")
    model = botocore.get_session().get_service_model("sagemaker")
    asked = set(model.operation_model("CreateTrainingJob").input_shape.members)
    answered = set(model.operation_model("DescribeTrainingJob").output_shape.members)
    assert answered - asked <= ANSWERED
    assert asked & ANSWERED == {"TrainingJobName"}
    assert asked - answered == set(NOT_DESCRIBED)
