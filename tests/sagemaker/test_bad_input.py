"""Report errors in the input before anything is created: no bucket, no object, no job, no row."""

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
    RequestRecorder,
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
def project_folder(account, home, tmp_path, monkeypatch):
    """Change to a folder with code and data; the home has no jobs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    (tmp_path / "data" / "deep" / "b.csv").write_text("3,4\n")


@pytest.mark.parametrize(
    ("arguments", "inputs", "error", "message"),
    [
        ({"role": "nobody"}, None, OptionError, "role: account 123456789012 has no role 'nobody'"),
        ({"role": "for-ec2"}, None, OptionError, "role: .*/for-ec2 does not let SageMaker assume it"),
        ({"role": None}, None, OptionError, "role: missing, and the caller .* has not assumed one"),
        ({"role": "arn:aws:iam::999999999999:role/x"}, None, OptionError, "role: .* belongs to account 999999999999"),
        ({"role": "arn:aws:iam::none"}, None, OptionError, "RoleArn does not match the service's pattern"),
        ({"code_location": "s3://gone/x"}, None, OptionError, "code_location: there is no bucket gone"),
        ({}, {"training": "empty"}, InputError, "channel 'training': .*empty has no files"),
        ({}, {"training": "secret"}, InputError, r"channel 'training': .*\.env looks like a secret"),
        ({}, {"training": "linked"}, InputError, "is a link to .*, outside the folder"),
        ({}, {"training": "broken"}, InputError, "broken/gone is neither a file nor a folder"),
        ({"use_spot_instances": True}, None, OptionError, "use_spot_instances: needs max_wait"),
        ({"entry_point": None, "image_uri": ""}, None, OptionError, "image_uri: expected"),
        ({"instance_type": "ml.nothing"}, None, OptionError, "'ml.nothing' is not among"),
    ],
)
def test_bad_input_is_reported_before_anything_is_created(recorder, index, tmp_path, arguments, inputs, error, message):
    make_role(recorder.boto, "for-ec2", EC2_ONLY)
    for name in ("empty", "secret", "linked", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret" / ".env").write_text("TOKEN=1\n")
    (tmp_path / "linked" / "out").symlink_to(tmp_path / "train.py")
    (tmp_path / "broken" / "gone").symlink_to(tmp_path / "broken" / "nowhere")
    with pytest.raises(error, match=message):
        fit(recorder, inputs, **arguments)
    _assert_nothing_was_created(recorder, index)


def _assert_nothing_was_created(recorder, index):
    assert recorder.boto.client("s3").list_buckets()["Buckets"] == []
    assert job_names(recorder.boto) == []
    assert index.all() == []


@pytest.mark.parametrize("name", ["gone:1", "mine:2", "mine", f"mine@sha256:{'0' * 64}"])
def test_an_image_that_is_missing_from_the_registry(recorder, index, name):
    recorder.boto.client("ecr").create_repository(repositoryName="mine")
    with pytest.raises(ImageError, match=f"image_uri: {REGISTRY}/{name}: the registry has no such image; push it"):
        fit(recorder, image_uri=f"{REGISTRY}/{name}")
    _assert_nothing_was_created(recorder, index)


def test_an_image_that_exists_or_that_the_caller_may_not_look_up(recorder):
    push_image(recorder.boto)
    fit(recorder, image_uri=f"{REGISTRY}/mine:1")
    recorder.on("ecr.DescribeImages", lambda: answer(400, "AccessDeniedException"))
    fit(recorder, image_uri=f"{REGISTRY}/unseen:1", job_name="digits-2")
    assert len(job_names(recorder.boto)) == 2


def test_a_bucket_of_another_account_is_refused(recorder, index):
    recorder.on("s3.HeadBucket", lambda: answer(403, "Forbidden"))
    with pytest.raises(AwsAccessError, match=f"{BUCKET}: access denied.* does not belong to account {ACCOUNT}"):
        fit(recorder)
    _assert_nothing_was_created(recorder, index)


def test_a_bucket_of_another_region_is_refused(recorder, index):
    recorder.boto.client("s3", region_name="us-west-2").create_bucket(
        Bucket="far", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    with pytest.raises(OptionError, match=f"bucket far is in region us-west-2, but the job runs in {REGION}"):
        fit(recorder, code_location="s3://far/x")
    assert keys(recorder.boto, "far") == []
    assert index.all() == []


def test_missing_credentials_and_a_missing_region(monkeypatch, recorder, index):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsCredentialsError, match="no AWS credentials were found; log in with `aws sso login`"):
        fit(RequestRecorder())
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match="no AWS region is set"):
        fit(RequestRecorder())
    assert index.all() == []


def test_a_role_that_the_caller_may_not_read_is_used_unchecked(recorder, capsys):
    recorder.on("iam.GetRole", lambda: answer(403, "AccessDenied", form=XML))
    fit(recorder, role="unseen")
    assert described(recorder.boto)["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/unseen"
    assert "role/unseen: not checked, because the caller may not read roles" in capsys.readouterr().err
