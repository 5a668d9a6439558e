"""Which role is meant, and whether SageMaker may take it on."""

import pytest

from herringbone.aws.session import Caller
from herringbone.backends.sagemaker.role import named_role, trusts_sagemaker
from herringbone_contract.errors import OptionError

ACCOUNT = "123456789012"
USER = Caller(account=ACCOUNT, arn=f"arn:aws:iam::{ACCOUNT}:user/me")


def assumed(role, partition="aws"):
    return Caller(account=ACCOUNT, arn=f"arn:{partition}:sts::{ACCOUNT}:assumed-role/{role}/session")


@pytest.mark.parametrize(
    ("role", "caller", "expected"),
    [
        ("training", USER, ("training", f"arn:aws:iam::{ACCOUNT}:role/training")),
        ("team/training", USER, ("training", f"arn:aws:iam::{ACCOUNT}:role/team/training")),
        (f"arn:aws:iam::{ACCOUNT}:role/a/b", USER, ("b", f"arn:aws:iam::{ACCOUNT}:role/a/b")),
        (None, assumed("notebook"), ("notebook", f"arn:aws:iam::{ACCOUNT}:role/notebook")),
        (None, assumed("notebook", "aws-cn"), ("notebook", f"arn:aws-cn:iam::{ACCOUNT}:role/notebook")),
        (
            None,
            assumed("AmazonSageMaker-ExecutionRole-1"),
            (
                "AmazonSageMaker-ExecutionRole-1",
                f"arn:aws:iam::{ACCOUNT}:role/service-role/AmazonSageMaker-ExecutionRole-1",
            ),
        ),
    ],
)
def test_the_role_that_is_meant(role, caller, expected):
    assert named_role(role, caller) == expected


@pytest.mark.parametrize(
    ("role", "says"),
    [
        (None, "role: missing, and the caller .*user/me has taken on none"),
        ("arn:aws:iam::999999999999:role/x", "of account 999999999999, and the credentials are of 123456789012"),
        ("arn:aws:s3:::bucket", "is no role's ARN"),
    ],
)
def test_no_role(role, says):
    with pytest.raises(OptionError, match=says):
        named_role(role, USER)


def policy(**changed):
    statement = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [{**statement, **changed}]}


@pytest.mark.parametrize(
    ("trust", "expected"),
    [
        (policy(), True),
        (policy(Principal={"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]}), True),
        (policy(Action=["sts:AssumeRole", "sts:TagSession"]), True),
        (policy(Principal={"Service": "ec2.amazonaws.com"}), False),
        (policy(Principal={"AWS": "arn:aws:iam::123456789012:root"}), False),
        (policy(Effect="Deny"), False),
        (policy(Action="sts:TagSession"), False),
        ({}, False),
    ],
)
def test_whom_a_role_trusts(trust, expected):
    assert trusts_sagemaker(trust) is expected
