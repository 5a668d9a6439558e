"""What is wrong is told before anything is made: no bucket, no object, no job, no row."""

from __future__ import annotations

import pytest

from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, ImageError, InputError, OptionError
from tests.sagemaker.account import (
    ACCOUNT,
    BUCKET,
    REGION,
    REGISTRY,
    TRUST,
    XML,
    Wire,
    answer,
    described,
    fit,
    job_names,
    keys,
    make_role,
    push_image,
)

pytest.importorskip("boto3", reason="the extra aws is not installed")

EC2_ONLY = {**TRUST, "Principal": {"Service": "ec2.amazonaws.com"}}


@pytest.fixture(autouse=True)
def here(account, home, tmp_path, monkeypatch):
    """A folder of code and data, in a home without jobs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    (tmp_path / "data" / "deep" / "b.csv").write_text("3,4\n")


@pytest.mark.parametrize(
    ("given", "inputs", "error", "says"),
    [
        ({"role": "nobody"}, None, OptionError, "role: account 123456789012 has no role 'nobody'"),
        ({"role": "for-ec2"}, None, OptionError, "role: .*/for-ec2, cannot be taken on by SageMaker"),
        ({"role": None}, None, OptionError, "role: missing, and the caller .* has taken on none"),
        ({"role": "arn:aws:iam::999999999999:role/x"}, None, OptionError, "role: .* is of account 999999999999"),
        ({"role": "arn:aws:iam::none"}, None, OptionError, "RoleArn does not match the service's pattern"),
        ({"code_location": "s3://gone/x"}, None, OptionError, "code_location: there is no bucket gone"),
        ({}, {"training": "empty"}, InputError, "channel 'training': .*empty has no files"),
        ({}, {"training": "secret"}, InputError, r"channel 'training': .*\.env looks like a secret"),
        ({}, {"training": "linked"}, InputError, "is a link to .*, outside of the folder"),
        ({}, {"training": "broken"}, InputError, "broken/gone is neither a file nor a folder"),
        ({"use_spot_instances": True}, None, OptionError, "use_spot_instances: needs max_wait"),
        ({"entry_point": None, "image_uri": ""}, None, OptionError, "image_uri: expected"),
        ({"instance_type": "ml.nothing"}, None, OptionError, "'ml.nothing' is not among"),
    ],
)
def test_bad_input_is_told_before_anything_is_made(wire, index, tmp_path, given, inputs, error, says):
    make_role(wire.boto, "for-ec2", EC2_ONLY)
    for name in ("empty", "secret", "linked", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret" / ".env").write_text("TOKEN=1\n")
    (tmp_path / "linked" / "out").symlink_to(tmp_path / "train.py")
    (tmp_path / "broken" / "gone").symlink_to(tmp_path / "broken" / "nowhere")
    with pytest.raises(error, match=says):
        fit(wire, inputs, **given)
    _nothing_is_there(wire, index)


def _nothing_is_there(wire, index):
    assert wire.boto.client("s3").list_buckets()["Buckets"] == []
    assert job_names(wire.boto) == []
    assert index.all() == []


@pytest.mark.parametrize("name", ["gone:1", "mine:2", "mine", f"mine@sha256:{'0' * 64}"])
def test_an_image_that_the_registry_has_not(wire, index, name):
    wire.boto.client("ecr").create_repository(repositoryName="mine")
    with pytest.raises(ImageError, match=f"image_uri: {REGISTRY}/{name}: the registry has no such image; push it"):
        fit(wire, image_uri=f"{REGISTRY}/{name}")
    _nothing_is_there(wire, index)


def test_an_image_of_ones_own_is_found_or_may_not_be_looked_for(wire):
    push_image(wire.boto)
    fit(wire, image_uri=f"{REGISTRY}/mine:1")
    wire.on("ecr.DescribeImages", lambda: answer(400, "AccessDeniedException"))
    fit(wire, image_uri=f"{REGISTRY}/unseen:1", job_name="digits-2")
    assert len(job_names(wire.boto)) == 2


def test_a_bucket_of_another_account_is_refused(wire, index):
    wire.on("s3.HeadBucket", lambda: answer(403, "Forbidden"))
    with pytest.raises(AwsAccessError, match=f"{BUCKET}: access denied.* is not of account {ACCOUNT}"):
        fit(wire)
    _nothing_is_there(wire, index)


def test_a_bucket_of_another_region_is_refused(wire, index):
    wire.boto.client("s3", region_name="us-west-2").create_bucket(
        Bucket="far", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    with pytest.raises(OptionError, match=f"bucket far is in region us-west-2, and the job is to run in {REGION}"):
        fit(wire, code_location="s3://far/x")
    assert keys(wire.boto, "far") == []
    assert index.all() == []


def test_without_credentials_or_a_region(monkeypatch, wire, index):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsCredentialsError, match="no AWS credentials were found; log in with `aws sso login`"):
        fit(Wire())
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match="no AWS region is set"):
        fit(Wire())
    assert index.all() == []


def test_a_role_that_may_not_be_looked_at_is_taken_by_its_name(wire, capsys):
    wire.on("iam.GetRole", lambda: answer(403, "AccessDenied", form=XML))
    fit(wire, role="unseen")
    assert described(wire.boto)["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/unseen"
    assert "role/unseen: taken as it is, because the caller may not look" in capsys.readouterr().err
