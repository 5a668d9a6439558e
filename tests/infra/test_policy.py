"""Test the policy evaluator that the other tests of permissions rely on."""

from __future__ import annotations

import pytest
from tests.infra.policy import allows

READ = {"Effect": "Allow", "Action": ["s3:Get*"], "Resource": "arn:aws:s3:::mine/code/*"}
TLS = {"Effect": "Deny", "Action": "s3:*", "Resource": "*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}}


def test_a_policy_allows_only_what_its_statements_name() -> None:
    policy = {"Statement": [READ]}
    assert allows(policy, "s3:getobject", "arn:aws:s3:::mine/code/a/b")
    assert not allows(policy, "s3:PutObject", "arn:aws:s3:::mine/code/a")
    assert not allows(policy, "s3:GetObject", "arn:aws:s3:::mine/codes")
    assert not allows(policy, "s3:GetObject")


def test_a_deny_wins_when_its_condition_is_met() -> None:
    policy = {"Statement": [READ, TLS]}
    assert allows(policy, "s3:GetObject", "arn:aws:s3:::mine/code/a", aws__SecureTransport="true")
    assert not allows(policy, "s3:GetObject", "arn:aws:s3:::mine/code/a", aws__SecureTransport="false")


def test_every_condition_must_match_one_of_its_values() -> None:
    condition = {"StringLike": {"s3:prefix": ["code/*", "data/*"]}, "StringEquals": {"aws:SourceAccount": "1"}}
    policy = {"Statement": {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*", "Condition": condition}}
    assert allows(policy, "s3:ListBucket", s3__prefix="data/x", aws__SourceAccount="1")
    assert not allows(policy, "s3:ListBucket", s3__prefix="jobs/x", aws__SourceAccount="1")
    assert not allows(policy, "s3:ListBucket", s3__prefix="data/x")


def test_an_unknown_operator_raises() -> None:
    statement = {"Effect": "Allow", "Action": "*", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}
    with pytest.raises(KeyError, match="IpAddress"):
        allows({"Statement": statement}, "s3:GetObject", aws__SourceIp="10.0.0.1")
