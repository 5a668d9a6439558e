"""Submit jobs with `fit` to a mock of AWS."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from io import BytesIO

import pytest

from herringbone.backends.sagemaker.description import differences
from herringbone_contract.errors import AwsError, AwsUnavailableError, InputError, JobNameError
from tests.sagemaker.account import (
    ACCOUNT,
    BUCKET,
    REGION,
    REGISTRY,
    RequestRecorder,
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
def project_folder(account, home, tmp_path, monkeypatch):
    """Change to a folder with code and data; the home has no jobs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    (tmp_path / "data" / "deep" / "b.csv").write_text("3,4\n")


def test_the_service_gets_the_planned_request_with_the_accounts_names(recorder, index):
    arguments = {"hyperparameters": {"epochs": 3}, "environment": {"MODE": "fast"}, "tags": {"team": "a"}}
    offline = estimator(recorder, **arguments).plan({"training": "data"}, "digits-1").request
    job = fit(recorder, {"training": "data"}, **arguments)
    row = index.get(job.name)
    request = row.plan_dict["request"]
    assert differences(request, described(recorder.boto)) == []
    assert request["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/training"
    assert "${" not in json.dumps(request)
    assert request.keys() == offline.keys()
    assert json.loads(request["HyperParameters"]["sagemaker_region"]) == REGION
    assert (row.client, json.loads(row.service)) == (None, {"region": REGION, "account": ACCOUNT})


def test_code_and_data_are_uploaded_where_the_request_says(recorder, index):
    request = index.get(fit(recorder, {"training": "data"}).name).plan_dict["request"]
    code = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    data = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert code.startswith(f"s3://{BUCKET}/herringbone/code/")
    assert data.startswith(f"s3://{BUCKET}/herringbone/data/")
    uris = [f"s3://{BUCKET}/{key}" for key in keys(recorder.boto)]
    assert uris == [code, f"{data}/a.csv", f"{data}/deep/b.csv"]
    body = recorder.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(recorder.boto)[0])["Body"].read()
    with tarfile.open(fileobj=BytesIO(gzip.decompress(body))) as archive:
        assert archive.getnames() == ["train.py"]


def test_the_default_bucket_is_created_once_private_and_encrypted(recorder, capsys):
    fit(recorder)
    s3 = recorder.boto.client("s3")
    blocks = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert set(blocks.values()) == {True}
    rules = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == f"bucket {BUCKET} created"
    assert captured.err.splitlines()[-2] == f"job digits-1 created in {REGION}"
    assert captured.err.splitlines()[-1].startswith("job digits-1: starting on sagemaker ")
    recorder.sent.clear()
    fit(recorder, job_name="digits-2")
    assert "CreateBucket" not in recorder.operations("s3")


def test_existing_objects_are_not_uploaded_again(recorder):
    fit(recorder, {"training": "data"})
    recorder.sent.clear()
    fit(recorder, {"training": "data"}, job_name="digits-2")
    assert recorder.operations("s3") == ["HeadBucket", "HeadObject", "ListObjectsV2"]
    assert recorder.operations("sagemaker") == ["DescribeTrainingJob", "CreateTrainingJob"]


def test_an_interrupted_upload_continues_with_the_missing_objects(recorder):
    interrupted = RequestRecorder()

    def lose_the_network():
        if interrupted.operations("s3").count("PutObject") > 1:
            raise ConnectionClosedError(endpoint_url="https://s3")

    interrupted.on("s3.PutObject", lose_the_network)
    with pytest.raises(AwsUnavailableError, match=r"to upload .*: AWS does not answer"):
        fit(interrupted, {"training": "data"})
    uploaded = len(keys(recorder.boto))
    assert uploaded == 1
    fit(recorder, {"training": "data"})
    assert recorder.operations("s3").count("PutObject") == 3 - uploaded


def test_large_files_travel_in_parts_and_arrive_whole(recorder):
    large = bytes(range(256)) * (36 << 10)  # 9 MiB
    with open("data/large", "wb") as file:
        file.write(large)
    fit(recorder, {"training": "data"})
    assert recorder.operations("s3").count("UploadPart") == 2
    (key,) = (key for key in keys(recorder.boto) if key.endswith("/large"))
    assert recorder.boto.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read() == large


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_a_file_that_changes_during_fit_is_not_stored_under_its_old_hash(recorder, size, index):
    with open("data/a.csv", "wb") as file:
        file.write(b"x" * size)

    def change():
        with open("data/a.csv", "r+b") as file:
            file.write(b"y")

    recorder.on("s3.ListObjectsV2", change)
    with pytest.raises(InputError, match=r"a\.csv has changed since it was read"):
        fit(recorder, {"training": "data"})
    assert not any(key.endswith("a.csv") for key in keys(recorder.boto))
    assert index.all() == []


def test_code_and_data_go_below_code_location(recorder):
    recorder.boto.client("s3").create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
    fit(recorder, {"training": "data"}, code_location="s3://mine/team", output_path="s3://mine/out")
    assert keys(recorder.boto) == []
    assert all(key.startswith(("team/code/", "team/data/")) for key in keys(recorder.boto, "mine"))
    assert len(keys(recorder.boto, "mine")) == 3


def test_output_kms_key_encrypts_the_uploads(recorder):
    fit(recorder, output_kms_key="alias/mine")
    head = recorder.boto.client("s3").head_object(Bucket=BUCKET, Key=keys(recorder.boto)[0])
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/mine")


def test_an_archive_of_the_user_is_uploaded_unchanged(recorder):
    with tarfile.open("code.tar.gz", "w:gz") as archive:
        archive.add("train.py")
    fit(recorder, source_dir="code.tar.gz")
    with open("code.tar.gz", "rb") as file:
        assert (
            recorder.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(recorder.boto)[0])["Body"].read()
            == file.read()
        )


def test_code_of_a_repository_is_packed_and_its_revision_recorded(recorder, index, tmp_path):
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "--quiet"), ("add", "train.py"), ("commit", "--quiet", "-m", "one")):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "train.py").write_text("not committed")
    plan = index.get(fit(recorder, git_config={"repo": str(tmp_path)}).name).plan_dict
    body = recorder.boto.client("s3").get_object(Bucket=BUCKET, Key=keys(recorder.boto)[0])["Body"].read()
    assert b"print(1)" in gzip.decompress(body)
    assert plan["source"]["revision"].startswith(f"{tmp_path}@")


def test_an_archive_in_a_bucket_is_not_copied(recorder):
    fit(recorder, source_dir="s3://elsewhere/code.tar.gz")
    assert described(recorder.boto)["HyperParameters"]["sagemaker_submit_directory"] == '"s3://elsewhere/code.tar.gz"'
    assert keys(recorder.boto) == []


def test_a_job_name_that_sagemaker_already_has(recorder, index, tmp_path, monkeypatch):
    fit(recorder)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "another-machine"))
    recorder.sent.clear()
    with pytest.raises(JobNameError, match=f"job name 'digits-1' is taken in account {ACCOUNT}, region {REGION};"):
        fit(recorder)
    assert recorder.operations("s3") == []


def test_a_job_name_of_this_machine_is_refused_without_a_request(recorder):
    fit(recorder)
    recorder.sent.clear()
    with pytest.raises(JobNameError, match="job name 'digits-1' is taken; choose another"):
        fit(recorder)
    assert recorder.sent == []


@pytest.fixture
def lose_the_answer(recorder, tmp_path, monkeypatch):
    """Return a function that makes SageMaker create the job, lose the answer, and refuse the name on the retry."""

    def lose(*, epochs):
        def send():
            if attempts:
                return answer(400, "ResourceInUse", "Training job names must be unique")
            attempts.append(True)
            with monkeypatch.context() as other_machine:
                other_machine.setenv("HERRINGBONE_HOME", str(tmp_path / "elsewhere"))
                fit(RequestRecorder(), hyperparameters={"epochs": epochs})
            raise ConnectionClosedError(endpoint_url="https://sagemaker")

        attempts: list[bool] = []
        recorder.on("sagemaker.CreateTrainingJob", send)

    return lose


def test_a_lost_answer_is_settled_by_describe(recorder, index, lose_the_answer):
    lose_the_answer(epochs=3)
    fit(recorder, hyperparameters={"epochs": 3})
    assert recorder.operations("sagemaker") == ["DescribeTrainingJob", "CreateTrainingJob", "DescribeTrainingJob"]
    assert index.get("digits-1").client is None
    assert job_names(recorder.boto) == ["digits-1"]


def test_a_name_that_another_job_took_during_fit(recorder, index, lose_the_answer):
    lose_the_answer(epochs=9)
    with pytest.raises(JobNameError, match=r"is taken .*it differs in HyperParameters\.epochs"):
        fit(recorder, hyperparameters={"epochs": 3})
    assert index.all() == []


def test_a_refusal_leaves_nothing_in_the_index(recorder, index):
    recorder.on("sagemaker.CreateTrainingJob", lambda: answer(400, "ResourceLimitExceeded", "limit is 0 Instances"))
    with pytest.raises(
        AwsError, match="to create job digits-1: limit is 0 Instances; request a higher quota of SageMaker at"
    ):
        fit(recorder)
    assert index.all() == []
    assert len(keys(recorder.boto)) == 1  # the next submission reuses it


def test_hosts_of_a_herringbone_image_get_a_key_that_this_machine_does_not_keep(recorder, index, home, capsys):
    image = "999999999999.dkr.ecr.eu-central-1.amazonaws.com/herringbone/pytorch:1"
    contents = []
    for name in ("digits-1", "digits-2"):
        fit(recorder, job_name=name, image_uri=image, instance_count=2)
        source = described(recorder.boto, name)["InputDataConfig"][0]["DataSource"]["S3DataSource"]
        key = f"{source['S3Uri'].removeprefix(f's3://{BUCKET}/')}/key"
        contents.append(recorder.boto.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert [len(content) for content in contents] == [64, 64]
    assert contents[0] != contents[1]
    captured = capsys.readouterr()
    local_files = [path.read_bytes() for path in home.path.rglob("*") if path.is_file()]
    for content in contents:
        assert content.decode() not in captured.out + captured.err + str(described(recorder.boto))
        assert not any(content in local_file for local_file in local_files)


@pytest.mark.parametrize(
    ("event", "then", "row_stays", "message"),
    [
        ("before-send.s3.PutObject", None, False, "was not created"),
        ("before-send.sagemaker.CreateTrainingJob", None, False, "was not created"),
        ("after-call.sagemaker.CreateTrainingJob", None, True, "was created, and runs: `herringbone logs -f digits-1`"),
        ("after-call.sagemaker.CreateTrainingJob", "again", True, "may have been created: run `herringbone describe"),
    ],
)
def test_ctrl_c_reports_whether_the_job_was_created(recorder, index, capsys, event, then, row_stays, message):
    pressed = []

    def interrupt(**_):
        pressed.append(event)
        raise KeyboardInterrupt

    recorder.boto.events.register(event, interrupt)
    recorder.on("sagemaker.DescribeTrainingJob", lambda: interrupt() if pressed and then == "again" else None)
    with pytest.raises(KeyboardInterrupt):
        fit(recorder)
    assert f"job digits-1 {message}" in capsys.readouterr().err
    assert [(row.name, row.client is None) for row in index.all()] == (
        [("digits-1", then is None)] if row_stays else []
    )


def test_the_operations_that_a_submission_needs(recorder):
    """The policy for callers (infra/terraform) must allow exactly these."""
    s3 = recorder.boto.client("s3")
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
    push_image(recorder.boto)
    with open("data/large", "wb") as file:
        file.write(b"x" * (9 << 20))
    recorder.sent.clear()
    locations = {"code_location": "s3://mine/herringbone", "output_path": "s3://mine/herringbone/jobs"}
    fit(recorder, {"training": "data"}, image_uri=f"{REGISTRY}/mine:1", **locations)
    uploads = {"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"}
    assert {service: set(recorder.operations(service)) for service, _ in recorder.sent} == {
        "sts": {"GetCallerIdentity"},
        "iam": {"GetRole"},
        "ecr": {"DescribeImages"},
        "s3": {"HeadBucket", "HeadObject", "ListObjectsV2", *uploads},
        "sagemaker": {"DescribeTrainingJob", "CreateTrainingJob"},
    }
