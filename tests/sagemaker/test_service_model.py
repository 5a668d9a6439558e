"""Check requests against botocore's service model; skipped where the extra `aws` is not installed."""

import json
import subprocess
import sys

import pytest

from herringbone import Estimator
from herringbone.backends.sagemaker.service_model import check_request
from herringbone_contract.errors import OptionError
from tests.sagemaker.planning import IMAGE

WITHOUT_BOTOCORE = """
import sys; sys.modules["botocore"] = None
from herringbone.backends.sagemaker.service_model import check_request
from herringbone_contract.errors import UnsupportedError
try: check_request({})
except UnsupportedError as error: print(error)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def plan(**changes):
    arguments = {"image_uri": IMAGE, "instance_type": "ml.g5.12xlarge", **changes}
    return Estimator("train.py", **arguments).plan(job_name="digits-1")


def test_a_plan_with_defaults_is_allowed(script):
    assert json.loads(json.dumps(plan().request)) == plan().request


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instance_type": "ml.g5.12xlarg"}, r"ResourceConfig.InstanceType .* did you mean ml\.g5\.12xlarge\?"),
        ({"max_retry_attempts": 31}, "RetryStrategy.MaximumRetryAttempts is 31; the service takes at most 30"),
        ({"role": "arn:aws:iam::1:user/me-and-me"}, "RoleArn does not match the service's pattern"),
        (
            {"subnets": ["s"] * 17, "security_group_ids": ["g"]},
            "VpcConfig.Subnets has 17 entries; the service takes 16",
        ),
        ({"image_uri": "x" * 100 + "/" + "x" * 155}, "TrainingImage has 256 characters; the service takes 255"),
        ({"tags": [{"Name": "x"}]}, r"Missing required parameter in Tags\[0\]: \"Key\""),
        ({"extra_request": {"StopingCondition": {}}}, 'Unknown parameter in input: "StopingCondition"'),
        ({"extra_request": {"Environment": {"a-b": "c"}}}, "name 'a-b' in Environment does not match"),
    ],
)
def test_a_request_that_the_service_would_refuse_is_refused_before_it_is_sent(script, changes, message):
    with pytest.raises(OptionError, match=f"(?s)^CreateTrainingJob would refuse this request:\n.*{message}"):
        plan(**changes)


def test_one_message_lists_every_violation_and_no_value_of_the_environment(script):
    with pytest.raises(OptionError) as caught:
        check_request({"TrainingJobName": "-", "Environment": {"KEY": "hunter2" * 100}})
    lines = str(caught.value).splitlines()
    assert len(lines) == 5  # the heading, two missing members, an invalid name, a value that is too long
    assert "hunter2" not in str(caught.value)


def test_without_the_extra_a_plan_says_what_to_install():
    output = subprocess.run([sys.executable, "-c", WITHOUT_BOTOCORE], check=True, capture_output=True, text=True).stdout
    assert output.strip().endswith("install it with: pip install boto3")
