"""Scripts whose jobs still train at AWS once they are converted."""

import pytest

from herringbone.convert.script import convert_script


# As AWS's examples write it, under the name of SDK v1, by position, and in a variable.
@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("PyTorch('a', role=get_execution_role(), instance_type='ml.c5.2xlarge', framework_version='2')", True),
        ("PyTorch('a', role=get_execution_role(), train_instance_type='ml.c5.2xlarge', framework_version='2')", True),
        ("Estimator('i', get_execution_role(), 1, 'ml.c5.2xlarge')", True),
        ("t = 'ml.c5.2xlarge'\nPyTorch('a', role=get_execution_role(), instance_type=t, framework_version='2')", True),
        ("t = 'local'\nPyTorch('a', role=get_execution_role(), instance_type=t, framework_version='2')", False),
        ("t = 'ml.m5.large'\nt = f()\nPyTorch('a', role=get_execution_role(), instance_type=t)", False),
        ("def g(t): PyTorch('a', role=get_execution_role(), instance_type=t)", False),
    ],
)
def test_a_job_that_still_trains_at_aws_is_named_with_its_role(call, left):
    imports = "from sagemaker import get_execution_role\nfrom sagemaker.pytorch import PyTorch"
    converted = convert_script(f"{imports}\nfrom sagemaker.estimator import Estimator\n{call}")
    texts = [note.text for note in converted.left]
    assert ["trains at AWS, in your account; to train here, write" in text for text in texts] == [True] * left
    assert ["with role=... if the caller of AWS is a user" in text for text in texts] == [True] * left
