"""Plans that this backend refuses by name, and the files that it sends."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from herringbone import TrainingInput
from herringbone.backends.kubernetes import files, review
from herringbone.backends.kubernetes.files import job_files
from herringbone.backends.kubernetes.pods import has_parts, pod_template
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from tests.kubernetes.planning import context_of, kubernetes_plan

ACCOUNT = {"kubernetes": {"service_account": "herringbone"}}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2\n")


def test_a_plan_with_every_served_option_passes(tmp_path):
    settings = {"cpu": 2, "memory": "1Gi", "volumes": {"data": "/data"}}
    settings["service_account"] = "herringbone"
    plan = kubernetes_plan(
        tmp_path,
        kubernetes=settings,
        gpus=2,
        shm_size="1g",
        max_retry_attempts=3,
        min_instance_count=1,
        retry_without_client=True,
        log_policies={"ECC": "exclude_host"},
        fault_policies={"host_lost": "exclude_host"},
        drain_notice="/run/drain",
        max_cost=5.0,
        dollars_per_hour=1.0,
        checkpoint_s3_uri="pvc://checkpoints",
        inputs={"train": "data", "more": "pvc://data/more"},
    )
    review.check(plan, exclude=tmp_path / "home")
    assert review.unused(plan) == ()
    assert review.unused(kubernetes_plan(tmp_path, code_location="s3://b/c", priority=5)) == (
        "code_location",
        "priority",
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"max_retry_attempts": 1, "kubernetes": {"workload": "jobset", "service_account": "a"}},
            UnsupportedError,
            "max_retry_attempts: with workload 'jobset' it is not in this release yet",
        ),
        ({"image_uri": None}, OptionError, "image_uri: missing; pods run an image that `herringbone images build`"),
        ({"image_uri": "Team/a:1"}, OptionError, "image_uri: 'Team/a:1' is no image of a registry"),
        ({"output_path": None}, OptionError, "output_path: missing: a pod's files are gone with it"),
        (
            {"output_path": "out"},
            OptionError,
            "output_path: out: a pod's files are gone with it, so give a folder of a",
        ),
        ({"output_path": "pvc://results/../x"}, OptionError, "is no folder of a claim"),
        ({"output_path": "s3://"}, InputError, "output_path: s3:// names no bucket"),
        ({"checkpoint_s3_uri": "s3://b"}, UnsupportedError, "checkpoint_s3_uri: s3://b is a whole bucket"),
        (
            {"checkpoint_s3_uri": "here"},
            UnsupportedError,
            "checkpoint_s3_uri: .*here is neither pvc://CLAIM/FOLDER",
        ),
        (
            {"code_location": "s3://b/code"},
            UnsupportedError,
            "code_location: pods get the code from a Secret or a",
        ),
        (
            {"output_path": "s3://b/o", "sagemaker_session": object()},
            UnsupportedError,
            "sagemaker_session: pods find their credentials for S3 by themselves",
        ),
        ({"inputs": "gone"}, InputError, "channel 'training': .*gone: no such file or folder"),
        ({"max_retry_attempts": 1}, UnsupportedError, "max_retry_attempts: only a pod with a token can start another"),
        ({"log_policies": {"a": "restart"}}, UnsupportedError, "log_policies: controls how a job restarts, and this"),
        (
            {"max_retry_attempts": 1, "retry_without_client": False, **ACCOUNT},
            UnsupportedError,
            "retry_without_client: the job's controller pod retries, and no client does",
        ),
        (
            {"max_retry_attempts": 1, "fault_policies": {"out_of_memory": "replan"}, **ACCOUNT},
            UnsupportedError,
            "fault_policies: replan: ",
        ),
        ({"enable_network_isolation": True}, UnsupportedError, "enable_network_isolation: pods of a cluster share"),
        ({"kubernetes": {"local_queue": "a"}}, OptionError, "local_queue: Kueue admits the Jobs of 2 hosts one by one"),
        (
            {"inputs": {"train": TrainingInput("pvc://data/a", distribution="ShardedByS3Key")}},
            UnsupportedError,
            "channel 'train': ShardedByS3Key divides channels in S3 alone",
        ),
        ({"output_kms_key": "k"}, UnsupportedError, "output_kms_key: the model is not encrypted"),
        (
            {"input_mode": "Pipe", "inputs": "data"},
            UnsupportedError,
            "Pipe mode and AugmentedManifestFile are not in",
        ),
    ],
)
def test_what_would_be_ignored_is_refused_by_name(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        review.check(kubernetes_plan(tmp_path, **options), exclude=tmp_path / "home")


def test_the_files_of_a_job(tmp_path):
    plan = kubernetes_plan(tmp_path, inputs={"train": "data"}, environment={"TOKEN": "secret"})
    with job_files(plan, b"\1\2", exclude=tmp_path / "home") as (stored, secret, parts):
        pass
    assert (stored, parts) == (plan, {})
    assert json.loads(secret["private.json"]) == {"environment": {"TOKEN": "secret"}, "key": "0102"}
    assert secret["private.json"].count(b"\n") == 1
    resources = json.loads(secret["g0.resourceconfig.json"])
    assert (resources["current_host"], resources["hosts"]) == ("@HOST@", ["algo-1", "algo-2"])
    assert list(json.loads(secret["g0.inputdataconfig.json"])) == ["train"]
    where = json.loads(secret["hyperparameters.json"])["sagemaker_submit_directory"]
    assert where == '"/herringbone/job/sourcedir.tar.gz"'
    for name, inside in (("sourcedir.tar.gz", "train.py"), ("channel.train.tar.gz", "a.csv")):
        with tarfile.open(fileobj=io.BytesIO(secret[name])) as archive:
            assert inside in archive.getnames()


def test_what_no_secret_holds_goes_to_the_claim_and_the_plan_says_so(tmp_path):
    Path("data", "large.bin").write_bytes(os.urandom(1 << 20))
    plan = kubernetes_plan(tmp_path, inputs={"train": "data"})
    assert not has_parts(plan)
    with job_files(plan, b"key", exclude=tmp_path / "home") as (stored, secret, parts):
        assert sorted(parts) == ["channel.train.tar.gz", "sourcedir.tar.gz"]
        assert not {*parts} & {*secret}
        with tarfile.open(parts["channel.train.tar.gz"]) as archive:
            assert archive.getnames() == ["a.csv", "large.bin"]
    assert not any(path.exists() for path in parts.values())
    assert has_parts(stored)
    where = json.loads(secret["hyperparameters.json"])["sagemaker_submit_directory"]
    assert where == '"/herringbone/parts/sourcedir.tar.gz"'
    mount = {"mountPath": "/herringbone/parts", "name": "claim-0", "readOnly": True, "subPath": "jobs/digits/input"}
    assert mount in pod_template(stored, stored.hosts[0], context_of(stored))["spec"]["containers"][0]["volumeMounts"]


def test_code_that_no_secret_holds_needs_a_claim_or_a_place_in_s3(tmp_path):
    Path("data", "large.bin").write_bytes(os.urandom(1 << 20))
    plan = kubernetes_plan(tmp_path, inputs={"train": "data"}, output_path="s3://mine/jobs")
    with (
        pytest.raises(InputError, match=r"a Secret holds .*: give an output_path in a claim .* or put them into S3"),
        job_files(plan, b"key", exclude=tmp_path / "home"),
    ):
        raise AssertionError


def test_what_s3_has_in_a_job_is_in_the_secret_without_credentials(tmp_path):
    channels = {"train": "s3://mine/data/", "here": "data", "claim": "pvc://data/x"}
    plan = kubernetes_plan(
        tmp_path,
        inputs=channels,
        output_path="s3://mine/jobs",
        checkpoint_s3_uri="s3://mine/c",
        source_dir="s3://mine/c.tar.gz",
    )
    review.check(plan, exclude=tmp_path / "home")
    with job_files(plan, b"key", exclude=tmp_path / "home") as (stored, secret, _):
        order = json.loads(secret["g0.s3.json"])
    assert order.pop("channels") == [{"name": "train", "input": {"s3_data": "s3://mine/data/"}}]
    assert order == {"job": "digits", "checkpoints": "s3://mine/c", "output": "s3://mine/jobs", "several": True}
    assert "sourcedir.tar.gz" not in secret
    assert json.loads(secret["hyperparameters.json"])["sagemaker_submit_directory"] == '"s3://mine/c.tar.gz"'
    mounts = pod_template(stored, stored.hosts[0], context_of(stored))["spec"]["containers"][0]["volumeMounts"]
    claims = [mount["mountPath"] for mount in mounts if mount["name"].startswith("claim")]
    assert claims == ["/herringbone/claims/claim-0"]


def test_data_that_is_too_large_for_the_api_server_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_SENT_BYTES", 1000)
    Path("data", "large.bin").write_bytes(bytes(2000))
    plan = kubernetes_plan(tmp_path, inputs={"train": "data"})
    with pytest.raises(InputError, match=r"at most 1.0 KB travel through the API server; the largest is 'train' with"):
        review.check(plan, exclude=tmp_path / "home")
