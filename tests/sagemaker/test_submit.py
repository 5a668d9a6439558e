"""From fit() to a job that the service has, against a mock of AWS."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from io import BytesIO

import pytest

from herringbone.backends.sagemaker.claim import differences
from herringbone_contract.errors import AwsError, AwsUnavailableError, InputError, JobNameError
from tests.sagemaker.account import (
    ACCOUNT,
    BUCKET,
    REGION,
    REGISTRY,
    Wire,
    answer,
    described,
    estimator,
    fit,
    job_names,
    keys,
    push_image,
)

pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore.exceptions import ConnectionClosedError


@pytest.fixture(autouse=True)
def here(account, home, tmp_path, monkeypatch):
    """A folder of code and data, in a home without jobs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    (tmp_path / "data" / "deep" / "b.csv").write_text("3,4\n")


def test_the_service_gets_the_planned_request_with_the_accounts_names(wire, index):
    given = {"hyperparameters": {"epochs": 3}, "environment": {"MODE": "fast"}, "tags": {"team": "a"}}
    job = fit(wire, {"training": "data"}, **given)
    row = index.get(job.name)
    request = row.plan_dict["request"]
    assert differences(request, described(wire.boto)) == []
    assert request["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/training"
    assert "${" not in json.dumps(request)
    offline = estimator(wire, **given).plan({"training": "data"}, "digits-1").request
    assert request.keys() == offline.keys()
    assert json.loads(request["HyperParameters"]["sagemaker_region"]) == REGION
    assert (row.client, json.loads(row.service)) == (None, {"region": REGION, "account": ACCOUNT})


def test_code_and_data_lie_where_the_request_says(wire, index):
    request = index.get(fit(wire, {"training": "data"}).name).plan_dict["request"]
    code = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    data = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert code.startswith(f"s3://{BUCKET}/herringbone/code/")
    assert data.startswith(f"s3://{BUCKET}/herringbone/data/")
    there = [f"s3://{BUCKET}/{key}" for key in keys(wire.boto)]
    assert there == [code, f"{data}/a.csv", f"{data}/deep/b.csv"]
    body = wire.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(wire.boto)[0])["Body"].read()
    with tarfile.open(fileobj=BytesIO(gzip.decompress(body))) as archive:
        assert archive.getnames() == ["train.py"]


def test_the_default_bucket_is_made_private_and_encrypted_once(wire, capsys):
    fit(wire)
    s3 = wire.boto.client("s3")
    closed = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert set(closed.values()) == {True}
    rules = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == f"bucket {BUCKET} created"
    assert said.err.splitlines()[-1] == f"job digits-1 created in {REGION}"
    wire.sent.clear()
    fit(wire, job_name="digits-2")
    assert "CreateBucket" not in wire.operations("s3")


def test_what_is_there_already_is_not_uploaded_again(wire):
    fit(wire, {"training": "data"})
    wire.sent.clear()
    fit(wire, {"training": "data"}, job_name="digits-2")
    assert wire.operations("s3") == ["HeadBucket", "HeadObject", "ListObjectsV2"]
    assert wire.operations("sagemaker") == ["DescribeTrainingJob", "CreateTrainingJob"]


def test_an_upload_that_was_cut_short_goes_on_with_what_is_missing(wire):
    cut = Wire()

    def lose_the_network():
        if cut.operations("s3").count("PutObject") > 1:
            raise ConnectionClosedError(endpoint_url="https://s3")

    cut.on("s3.PutObject", lose_the_network)
    with pytest.raises(AwsUnavailableError, match=r"to upload .*: AWS does not answer"):
        fit(cut, {"training": "data"})
    there = len(keys(wire.boto))
    assert there == 1
    fit(wire, {"training": "data"})
    assert wire.operations("s3").count("PutObject") == 3 - there


def test_large_files_go_in_parts_and_whole(wire):
    large = bytes(range(256)) * (36 << 10)  # 9 MiB
    with open("data/large", "wb") as file:
        file.write(large)
    fit(wire, {"training": "data"})
    assert wire.operations("s3").count("UploadPart") == 2
    (key,) = (key for key in keys(wire.boto) if key.endswith("/large"))
    assert wire.boto.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read() == large


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_a_file_that_changes_meanwhile_does_not_land_under_the_old_content(wire, size, index):
    with open("data/a.csv", "wb") as file:
        file.write(b"x" * size)

    def change():
        with open("data/a.csv", "r+b") as file:
            file.write(b"y")

    wire.on("s3.ListObjectsV2", change)
    with pytest.raises(InputError, match=r"a\.csv has changed since it was read"):
        fit(wire, {"training": "data"})
    assert not any(key.endswith("a.csv") for key in keys(wire.boto))
    assert index.all() == []


def test_code_and_data_go_below_code_location(wire):
    wire.boto.client("s3").create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
    fit(wire, {"training": "data"}, code_location="s3://mine/team", output_path="s3://mine/out")
    assert keys(wire.boto) == []
    assert all(key.startswith(("team/code/", "team/data/")) for key in keys(wire.boto, "mine"))
    assert len(keys(wire.boto, "mine")) == 3


def test_with_a_key_uploads_are_encrypted_by_it(wire):
    fit(wire, output_kms_key="alias/mine")
    head = wire.boto.client("s3").head_object(Bucket=BUCKET, Key=keys(wire.boto)[0])
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/mine")


def test_an_archive_of_the_users_travels_as_it_is(wire):
    with tarfile.open("code.tar.gz", "w:gz") as archive:
        archive.add("train.py")
    fit(wire, source_dir="code.tar.gz")
    with open("code.tar.gz", "rb") as file:
        assert wire.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(wire.boto)[0])["Body"].read() == file.read()


def test_code_of_a_repository_is_packed_and_named(wire, index, tmp_path):
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "--quiet"), ("add", "train.py"), ("commit", "--quiet", "-m", "one")):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "train.py").write_text("not committed")
    plan = index.get(fit(wire, git_config={"repo": str(tmp_path)}).name).plan_dict
    body = wire.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(wire.boto)[0])["Body"].read()
    assert b"print(1)" in gzip.decompress(body)
    assert plan["source"]["revision"].startswith(f"{tmp_path}@")


def test_an_archive_in_a_bucket_stays_where_it_is(wire):
    fit(wire, source_dir="s3://elsewhere/code.tar.gz")
    assert described(wire.boto)["HyperParameters"]["sagemaker_submit_directory"] == '"s3://elsewhere/code.tar.gz"'
    assert keys(wire.boto) == []


def test_a_name_that_the_service_has_already(wire, index, tmp_path, monkeypatch):
    fit(wire)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "another-machine"))
    wire.sent.clear()
    with pytest.raises(JobNameError, match=f"job name 'digits-1' is taken in account {ACCOUNT}, region {REGION};"):
        fit(wire)
    assert wire.operations("s3") == []


def test_a_name_that_a_job_of_this_machine_has(wire):
    fit(wire)
    wire.sent.clear()
    with pytest.raises(JobNameError, match="job name 'digits-1' is taken; choose another"):
        fit(wire)
    assert wire.sent == []


@pytest.fixture
def lose_the_answer(wire, tmp_path, monkeypatch):
    """The service creates a job, its answer does not arrive, and the next one is that the name is in use."""

    def lose(*, epochs):
        def send():
            if tried:
                return answer(400, "ResourceInUse", "Training job names must be unique")
            tried.append(True)
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("HERRINGBONE_HOME", str(tmp_path / "elsewhere"))
                fit(Wire(), hyperparameters={"epochs": epochs})
            raise ConnectionClosedError(endpoint_url="https://sagemaker")

        tried: list[bool] = []
        wire.on("sagemaker.CreateTrainingJob", send)

    return lose


def test_a_lost_answer_is_settled_by_asking(wire, index, lose_the_answer):
    lose_the_answer(epochs=3)
    fit(wire, hyperparameters={"epochs": 3})
    assert wire.operations("sagemaker") == ["DescribeTrainingJob", "CreateTrainingJob", "DescribeTrainingJob"]
    assert index.get("digits-1").client is None
    assert job_names(wire.boto) == ["digits-1"]


def test_a_name_that_another_took_meanwhile(wire, index, lose_the_answer):
    lose_the_answer(epochs=9)
    with pytest.raises(JobNameError, match=r"is taken .*it differs in HyperParameters\.epochs"):
        fit(wire, hyperparameters={"epochs": 3})
    assert index.all() == []


def test_a_refusal_leaves_nothing_in_the_index(wire, index):
    wire.on("sagemaker.CreateTrainingJob", lambda: answer(400, "ResourceLimitExceeded", "limit is 0 Instances"))
    with pytest.raises(AwsError, match="to create job digits-1: limit is 0 Instances; a quota is raised at"):
        fit(wire)
    assert index.all() == []
    assert len(keys(wire.boto)) == 1  # for the next time


def test_hosts_of_our_image_get_a_key_that_nothing_here_keeps(wire, index, home, capsys):
    image = "999999999999.dkr.ecr.eu-central-1.amazonaws.com/herringbone/pytorch:1"
    contents = []
    for name in ("digits-1", "digits-2"):
        fit(wire, job_name=name, image_uri=image, instance_count=2)
        source = described(wire.boto, name)["InputDataConfig"][0]["DataSource"]["S3DataSource"]
        key = f"{source['S3Uri'].removeprefix(f's3://{BUCKET}/')}/key"
        contents.append(wire.boto.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert [len(content) for content in contents] == [64, 64]
    assert contents[0] != contents[1]
    said = capsys.readouterr()
    kept = [path.read_bytes() for path in home.path.rglob("*") if path.is_file()]
    for content in contents:
        assert content.decode() not in said.out + said.err + str(described(wire.boto))
        assert not any(content in each for each in kept)


@pytest.mark.parametrize(
    ("at", "then", "kept", "says"),
    [
        ("before-send.s3.PutObject", None, False, "was not created"),
        ("before-send.sagemaker.CreateTrainingJob", None, False, "was not created"),
        ("after-call.sagemaker.CreateTrainingJob", None, True, "was created, and runs: `herringbone logs -f digits-1`"),
        ("after-call.sagemaker.CreateTrainingJob", "again", True, "may have been created: `herringbone describe"),
    ],
)
def test_ctrl_c_says_what_is_true(wire, index, capsys, at, then, kept, says):
    pressed = []

    def interrupt(**_):
        pressed.append(at)
        raise KeyboardInterrupt

    wire.boto.events.register(at, interrupt)
    wire.on("sagemaker.DescribeTrainingJob", lambda: interrupt() if pressed and then == "again" else None)
    with pytest.raises(KeyboardInterrupt):
        fit(wire)
    assert f"job digits-1 {says}" in capsys.readouterr().err
    assert [(row.name, row.client is None) for row in index.all()] == ([("digits-1", then is None)] if kept else [])


def test_all_that_is_asked_of_an_account_that_is_ready(wire):
    """What the policy for callers (infra/terraform) has to allow."""
    s3 = wire.boto.client("s3")
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
    push_image(wire.boto)
    with open("data/large", "wb") as file:
        file.write(b"x" * (9 << 20))
    wire.sent.clear()
    places = {"code_location": "s3://mine/herringbone", "output_path": "s3://mine/herringbone/jobs"}
    fit(wire, {"training": "data"}, image_uri=f"{REGISTRY}/mine:1", **places)
    uploads = {"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"}
    assert {service: set(wire.operations(service)) for service, _ in wire.sent} == {
        "sts": {"GetCallerIdentity"},
        "iam": {"GetRole"},
        "ecr": {"DescribeImages"},
        "s3": {"HeadBucket", "HeadObject", "ListObjectsV2", *uploads},
        "sagemaker": {"DescribeTrainingJob", "CreateTrainingJob"},
    }
