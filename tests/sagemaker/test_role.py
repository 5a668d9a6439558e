"""Resolve the role of a job, and check that SageMaker may assume it."""

import pytest

from herringbone.aws.session import Caller
from herringbone.backends.sagemaker.account import resolve_role, trusts_sagemaker
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
def test_a_role_is_resolved_by_name_arn_or_caller(role, caller, expected):
    assert resolve_role(role, caller) == expected


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (None, "role: missing, and the caller .*user/me has not assumed one"),
        (
            "arn:aws:iam::999999999999:role/x",
            "belongs to account 999999999999, but the credentials belong to 123456789012",
        ),
        ("arn:aws:s3:::bucket", "is not the ARN of a role"),
    ],
)
def test_values_that_name_no_usable_role(role, message):
    with pytest.raises(OptionError, match=message):
        resolve_role(role, USER)


def policy(**changes):
    statement = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [{**statement, **changes}]}


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
def test_trust_policies(trust, expected):
    assert trusts_sagemaker(trust) is expected
