"""Rebuild jobs from SageMaker's descriptions; planned again, each is the same job.

For each golden request of the peer, and for Herringbone's own request of the same call, the test writes the description
that SageMaker would return, rebuilds the plan, and plans it again.
"""

import json

import pytest

import herringbone
from herringbone.backends.sagemaker.rebuild import DESCRIPTION_ONLY, rebuild
from herringbone.backends.sagemaker.request import training_job_request
from herringbone.plan.plan import parse_plan
from herringbone.plan.request import request_of
from tests.sagemaker.service import described
from tests.sagemaker.test_peer import CASES, NAMES, fields, meaning, own_request, peer_request, project_folder  # noqa: F401 - a fixture

ACCEPTED = [case for case in CASES if "we_refuse" not in case and "error" not in peer_request(case)]
# DescribeTrainingJob has no such members; ListTags returns the tags.
NOT_DESCRIBED = ("Tags", "SessionChainingConfig")
DIFFERS = {
    "spot": {"CheckpointConfig.LocalPath"},  # SageMaker describes its default, which the new request contains
    "session-tag-chaining": {"SessionChainingConfig.EnableSessionTagChaining"},  # SageMaker does not describe it
    # Herringbone sends the type of the training hosts, and the peer sends null.
    "instance-groups-training-on-one": {"HyperParameters.sagemaker_instance_type"},
}


def request_again(request, kind):
    """Describe a request as SageMaker does, rebuild its plan, plan the estimator, and return the new request."""
    members = {name: value for name, value in request.items() if name not in NOT_DESCRIBED}
    description = described(request["TrainingJobName"], **members)
    # SageMaker describes these defaults for members that were not in the request.
    for name in ("EnableNetworkIsolation", "EnableManagedSpotTraining", "EnableInterContainerTrafficEncryption"):
        description.setdefault(name, False)
    description["OutputDataConfig"] = {"KmsKeyId": "", "CompressionType": "GZIP", **description["OutputDataConfig"]}
    if "CheckpointConfig" in description:
        description["CheckpointConfig"] = {"LocalPath": "/opt/ml/checkpoints", **description["CheckpointConfig"]}
    plan = rebuild(json.loads(json.dumps(description)), request.get("Tags", ()), kind=kind)
    plan = parse_plan(plan.to_dict())  # the index keeps plans in this form
    again = getattr(herringbone, kind).of(request_of(plan)).plan(job_name=plan.job_name)
    return training_job_request(again, NAMES)


def differing(one, other):
    left, right = dict(fields(one)), dict(fields(other))
    return {
        path: (left.get(path), right.get(path))
        for path in left.keys() | right.keys()
        if meaning(path, left.get(path)) != meaning(path, right.get(path))
    }


@pytest.mark.parametrize("case", ACCEPTED, ids=[case["name"] for case in ACCEPTED])
def test_a_rebuilt_job_of_herringbone_is_the_same_job(case):
    request = own_request(case)
    differs = DIFFERS.get(case["name"], set()) - {"HyperParameters.sagemaker_instance_type"}
    assert differing(request, request_again(request, case["estimator"])).keys() == differs


@pytest.mark.parametrize("case", ACCEPTED, ids=[case["name"] for case in ACCEPTED])
def test_a_rebuilt_job_of_the_peer_is_the_same_job(case):
    request = peer_request(case)
    assert differing(request, request_again(request, case["estimator"])).keys() == DIFFERS.get(case["name"], set())


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0-gpu", "PyTorch"),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone/tensorflow:2.21", "TensorFlow"),
        ("mine:1", "Estimator"),
    ],
)
def test_the_images_name_determines_the_estimator(image, kind):
    assert rebuild(described("a", AlgorithmSpecification={"TrainingImage": image})).estimator == kind


def test_unknown_hyperparameters_are_kept():
    foreign = {"sagemaker_mpi_enabled": "true", "sagemaker_parameter_server_enabled": "true", "epochs": "3"}
    plan = rebuild(described("a", HyperParameters=foreign))
    assert (plan.launcher, plan.hyperparameters) == ("plain", foreign)
    assert plan.arguments.hyperparameters == {"epochs": 3, **dict.fromkeys(list(foreign)[:2], True)}


def test_members_that_only_descriptions_have_are_complete():
    botocore = pytest.importorskip("botocore.session", reason="the extra aws is not installed")
    model = botocore.get_session().get_service_model("sagemaker")
    requested = set(model.operation_model("CreateTrainingJob").input_shape.members)
    described_members = set(model.operation_model("DescribeTrainingJob").output_shape.members)
    assert described_members - requested <= DESCRIPTION_ONLY
    assert requested & DESCRIPTION_ONLY == {"TrainingJobName"}
    assert requested - described_members == set(NOT_DESCRIBED)
