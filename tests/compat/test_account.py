"""A project of SDK v2 on own hosts without an account: buckets are folders, and a service here is AWS's API."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

NO_ACCOUNT = {
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_REGION"), ""),
    "AWS_SHARED_CREDENTIALS_FILE": "/none",
    "AWS_CONFIG_FILE": "/none",
    "HERRINGBONE_INSTANCE_TYPE": "local_process",
    "AWS_EC2_METADATA_DISABLED": "true",
}
# The lines with which notebooks begin and end.
NOTEBOOK = """
import boto3, json, sagemaker
from botocore.validate import ParamValidator
from datetime import timedelta
from urllib.request import urlopen
from herringbone.serve.model import find_operation
from sagemaker.debugger import TensorBoardOutputConfig
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader, S3Uploader
from sagemaker.serializers import CSVSerializer
from sagemaker.tuner import HyperparameterTuner, IntegerParameter

session = sagemaker.Session()
bucket, role, region = session.default_bucket(), sagemaker.get_execution_role(), boto3.Session().region_name
found = {"bucket": bucket, "role": role, "region": region}
rows = session.upload_data("rows", bucket=bucket, key_prefix="p/rows")
boto3.Session().resource("s3").Bucket(bucket).Object("p/rows/more.csv").upload_file("rows/part.csv")
address = boto3.client("s3").generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "p/rows/part.csv"})
found["signed"] = urlopen(address).read().decode()
found["rows"] = [rows, S3Downloader.list(rows), S3Uploader.upload("rows", f"s3://{bucket}/again")]
estimator = PyTorch(
    "fit.py", source_dir="code", role=role, train_instance_type="ml.m5.large", train_instance_count=1,
    framework_version="2.1", py_version="py310", output_path=f"s3://{bucket}/out", sagemaker_session=session,
    metric_definitions=[{"Name": "cost", "Regex": "cost=([0-9.]+)"}, {"Name": "none", "Regex": "<><>"}],
    script_mode=True, tags=[{"Key": "team", "Value": "a"}], env={"COLOUR": "red"},
    tensorboard_output_config=TensorBoardOutputConfig(f"s3://{bucket}/board"),
)
search = HyperparameterTuner(estimator, "cost", {"depth": IntegerParameter(1, 2)})
found["names"] = [estimator._current_job_name, search._current_job_name]
estimator.fit({"train": rows}, False, "None", None, {"ExperimentName": "digits"})
found["soon"] = estimator.model_data
attached = PyTorch.attach(estimator._current_job_name, sagemaker_session=session)
found["attached"] = attached.model_data
found["session"] = attached.sagemaker_session.describe_training_job(attached._current_job_name)["TrainingJobStatus"]
found["places"] = [PyTorch("fit.py", instance_type="ml.m5.large", instance_count=1, sagemaker_session=one).output_path
                   for one in (None, session, sagemaker.Session(default_bucket="mine"))]
job = estimator.latest_training_job
found["names"] += [estimator._current_job_name == job.name]
found["watch"] = [estimator.rules, estimator.debugger_hook_config, estimator.disable_profiler]
described = job.describe()
found["job"] = [job.job_name == job.name, described["CreationTime"].year, described["OutputDataConfig"]["KmsKeyId"],
                described["TrainingJobArn"].endswith(f"/{job.name}"), described["BillableTimeInSeconds"] >= 0]
shape = find_operation("sagemaker", "DescribeTrainingJob").output_shape
wrong = ParamValidator().validate(described, shape).generate_report().splitlines()
found["wrong"] = [line for line in wrong if not line.startswith("Unknown")]
found["cost"] = [row["value"] for row in estimator.training_job_analytics.rows()]
found["model"] = [estimator.model_data == f"s3://{bucket}/out/{job.name}/output/model.tar.gz",
                  len(S3Downloader.read_bytes(estimator.model_data)) > 0]
code = json.loads(described["HyperParameters"]["sagemaker_submit_directory"])
found["code"] = [code == f"s3://{bucket}/{job.name}/source/sourcedir.tar.gz", S3Downloader.list(code) == [code]]
found["tags"] = [tag["Value"] for tag in described["Tags"]]
found["asked"] = [estimator.metric_definitions, estimator.tags, estimator.role]
told = boto3.client("sagemaker").describe_training_job(TrainingJobName=job.name)
mean = boto3.client("cloudwatch").get_metric_statistics(
    Namespace="/aws/sagemaker/TrainingJobs", MetricName="cost", Period=3600, Statistics=["Maximum"],
    Dimensions=[{"Name": "TrainingJobName", "Value": job.name}],
    StartTime=described["TrainingStartTime"], EndTime=described["TrainingEndTime"] + timedelta(hours=1),
)
found["greatest"] = [point["Maximum"] for point in mean["Datapoints"]]
cost = told["FinalMetricDataList"][0]["Value"]
found["roles"] = [one["RoleArn"] == role for one in (described, told, session.describe_training_job(job.name))]
found["told"] = [told["TrainingJobStatus"], told["OutputDataConfig"]["KmsKeyId"], cost]
# As with SDK v2, a model without output_path is in the default bucket.
plain = PyTorch("fit.py", source_dir="code", role=role, instance_type="ml.m5.large", instance_count=1,
                framework_version="2.1", py_version="py310")
found["plain"] = plain.output_path
found["asked_again"] = plain.sagemaker_session.describe_training_job(job.name)["TrainingJobName"] == job.name
found["board"] = S3Downloader.list(f"s3://{bucket}/board")
try:
    estimator.deploy(1, "ml.m5.large", serializer=CSVSerializer)
except Exception as error:
    found["deploy"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
FIT = """
import os
print(sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])))
for step in (1, 2, 4):
    print(f"step {step} cost={1 / step}", flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w").write("w")
os.makedirs(os.environ["SM_OUTPUT_DIR"] + "/tensorboard", exist_ok=True)
open(os.environ["SM_OUTPUT_DIR"] + "/tensorboard/" + os.environ["COLOUR"], "w").write("w")
"""


def service_of(home: Path) -> dict[str, object]:
    path = home / "service" / "personal.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


@pytest.mark.e2e
def test_a_project_trains_without_an_account_and_leaves_no_service_behind(run, tmp_path):
    for name, text in {"code/fit.py": FIT, "rows/part.csv": "1,2\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run(NOTEBOOK, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    bucket = "sagemaker-us-east-1-000000000000"
    assert (found["bucket"], found["region"]) == (bucket, "us-east-1")
    assert found["role"].startswith("arn:aws:iam::000000000000:role/")
    assert found["signed"] == "1,2\n"
    rows = f"s3://{bucket}/p/rows"
    assert found["rows"] == [rows, [f"{rows}/more.csv", f"{rows}/part.csv"], f"s3://{bucket}/again"]
    assert found["job"] == [True, found["job"][1], "", True, True]
    # Every member that AWS marks as always there, and AWS's types.
    assert found["wrong"] == []
    assert found["cost"] == [1.0, 0.5, 0.25]
    assert found["model"] == [True, True]
    assert found["code"] == [True, True]
    assert found["asked"][:2] == [[{"Name": "cost", "Regex": "cost=([0-9.]+)"}], [{"Key": "team", "Value": "a"}]]
    assert found["tags"] == ["a", "digits"]
    assert found["greatest"] == [1.0]
    assert found["roles"] == [True, True, True]
    assert found["told"] == ["Completed", "", 0.25]
    # It waits for the end of the job, which alone has a model.
    assert found["attached"].startswith(f"s3://{bucket}/out/fit-")
    assert found["soon"] == found["attached"]
    assert found["session"] == "Completed"
    assert found["places"] == [f"s3://{bucket}/", f"s3://{bucket}/", "s3://mine/"]
    assert found["names"] == [None, None, True]
    assert found["watch"] == [None, None, True]
    assert (found["plain"], found["asked_again"]) == (f"s3://{bucket}/", True)
    assert found["board"] == [f"s3://{bucket}/board/red"]
    assert found["deploy"].startswith("UnsupportedError: PyTorch.deploy: Herringbone trains, and neither hosts")
    assert "no account of AWS is asked: buckets are the folders in" in done.stderr
    assert "metric none: its Regex has no group, and records nothing" in done.stderr
    home = tmp_path / "home"
    assert (home / "buckets" / bucket / "p" / "rows" / "part.csv").read_text() == "1,2\n"
    end = time.monotonic() + 30
    while service_of(home):
        assert time.monotonic() < end, (home / "service" / "personal.log").read_text()
        time.sleep(0.1)


FAILED = """
import json, sagemaker
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.pytorch import PyTorch

session = sagemaker.Session()
estimator = PyTorch("fails.py", role="r", instance_count=1, instance_type="ml.m5.large", source_dir="code")
estimator.fit(wait=False)
name, raised = estimator.latest_training_job.name, []
for wait in (
    lambda: PyTorch.attach(name),
    estimator.latest_training_job.wait,
    lambda: session.wait_for_job(name),
    lambda: session.logs_for_job(name, wait=True),
):
    try:
        wait()
    except UnexpectedStatusException as error:
        raised.append("no rows" in str(error))
print(json.dumps(raised))
"""


def test_whoever_waits_for_a_job_hears_that_it_failed(run, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "fails.py").write_text("raise ValueError('no rows')")
    done = run(FAILED, env={**NO_ACCOUNT, "HERRINGBONE_ACCOUNT": "aws"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4


OTHERS = """
import boto3, json, sagemaker
from botocore.exceptions import ClientError

session = sagemaker.Session()
calls = {
    "form": boto3.client("cloudformation").list_stacks,
    "form of ec2": boto3.client("ec2").describe_vpcs,
    "json": boto3.client("ecr").describe_repositories,
    "rest": boto3.client("efs").describe_file_systems,
    "endpoint": lambda: session.sagemaker_runtime_client.invoke_endpoint(EndpointName="e", Body=b"x"),
    "metrics": lambda: session.sagemaker_metrics_client.batch_put_metrics(
        TrialComponentName="t", MetricData=[{"MetricName": "m", "Timestamp": 1, "Value": 1.0}]
    ),
    "features": lambda: session.sagemaker_featurestore_runtime_client.get_record(
        FeatureGroupName="g", RecordIdentifierValueAsString="r"
    ),
}
found = {}
for name, call in calls.items():
    try:
        found[name] = call()
    except ClientError as error:
        found[name] = [error.response["Error"]["Code"], error.response["Error"]["Message"].partition(", ")[0]]
print(json.dumps(found))
"""


def test_other_services_are_refused_by_name_each_in_its_own_protocol(run):
    done = run(OTHERS, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {code for code, _ in found.values()} == {"UnknownOperationException"}
    ends = ": this service stands in for sagemaker"
    assert {name: text.removesuffix(ends) for name, (_, text) in found.items() if text.endswith(ends)} == {
        "form": "cloudformation: POST /",
        "form of ec2": "ec2: POST /",
        "json": "ecr: AmazonEC2ContainerRegistry_V20150921.DescribeRepositories",
        "rest": "elasticfilesystem: GET /2015-02-01/file-systems",
        "endpoint": "sagemaker: /endpoints/e/invocations",
        "metrics": "sagemaker: PUT /BatchPutMetrics",
        "features": "sagemaker: GET /FeatureGroup/g",
    }


TWO = """
import os, subprocess, sys, sagemaker
if sys.argv[1] == "first":
    environ = {**os.environ, "AWS_ENDPOINT_URL": "", "AWS_ACCESS_KEY_ID": ""}
    words = [sys.executable, __file__, "second"]
    other = subprocess.run(words, capture_output=True, text=True, check=True, env=environ)
    assert os.environ["AWS_ENDPOINT_URL"] in other.stdout, other
    # One that inherits the variables, as `!python submit.py` of a notebook does, is no less one of them.
    other = subprocess.run(words, capture_output=True, text=True, check=True)
    assert os.environ["AWS_ENDPOINT_URL"] in other.stdout, other
    assert "no account of AWS is asked" in other.stderr, other
print(os.environ["AWS_ENDPOINT_URL"], sagemaker.Session().account_id())
"""


def test_processes_share_one_service(run, tmp_path):
    (tmp_path / "two.py").write_text(TWO)
    done = run("two.py", "first", env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 000000000000\n")


AGAIN = """
import subprocess, sys, time
from herringbone.records.home import find_home
from herringbone.serve.personal import join
home = find_home()
subprocess.run([sys.executable, "-c", "import sagemaker"], check=True)
while (home.path / "service" / "personal.json").exists():
    time.sleep(0.001)
print(join(home, "local_process")["AWS_ENDPOINT_URL"])
"""


def test_a_notebook_that_starts_while_the_service_ends_gets_a_new_one(run):
    done = run(AGAIN, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("http://127.0.0.1:")


OWN = """
import json, os, sagemaker
from herringbone.records.home import find_home
session = sagemaker.Session()
home = find_home().path
session.upload_data("mine.csv", key_prefix="a")
service = json.loads((home / "service" / "personal.json").read_bytes())["process"].partition("@")[0]
with open(f"/proc/{service}/environ") as file:
    inherited = dict(one.partition("=")[::2] for one in file.read().split(chr(0)))
os.mkdir("elsewhere")
os.chdir("elsewhere")
session.upload_data("../mine.csv", key_prefix="b")
names = [name for name in os.environ if name.startswith(("AWS_", "HERRINGBONE_HOME"))]
print(json.dumps([{name: one.get(name) for name in names} for one in (dict(os.environ), inherited)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the variables of a process")
def test_nothing_of_an_account_reaches_the_service_and_its_jobs(run, tmp_path):
    (tmp_path / "mine.csv").write_text("1\n")
    account = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), "theirs")
    elsewhere = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    # A home that counts from the folder of the notebook, which then goes elsewhere.
    env = {**NO_ACCOUNT, **account, **elsewhere, "HERRINGBONE_ACCOUNT": "own", "HERRINGBONE_HOME": "home"}
    done = run(OWN, env=env)
    assert done.returncode == 0, done.stderr
    notebook, service = json.loads(done.stdout)
    # Jobs that are created by a call inherit the service's.
    assert notebook == service
    assert "theirs" not in notebook.values()
    assert not notebook.keys() & {"AWS_SESSION_TOKEN", *elsewhere}
    assert notebook["HERRINGBONE_HOME"] == str(tmp_path / "home")
    bucket = tmp_path / "home" / "buckets" / "sagemaker-us-east-1-000000000000"
    assert sorted(path.name for path in bucket.glob("[!.]*")) == ["a", "b"]


def test_an_account_of_no_kind_is_refused_before_anything_is_sent(run):
    done = run("import sagemaker", env={**NO_ACCOUNT, "HERRINGBONE_ACCOUNT": "OWN"})
    assert done.stderr.splitlines()[-1].endswith(
        "HERRINGBONE_ACCOUNT: 'OWN': own or aws; leave it out for the account that is configured"
    )


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"AWS_PROFILE": "team"}, "s3:// and AWS's API are those of the account of AWS_PROFILE"),
        ({"AWS_SHARED_CREDENTIALS_FILE": "keys.ini"}, "those of the account of profile default"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "those of the account of the environment"),
        ({"HERRINGBONE_ACCOUNT": "aws"}, ""),
        ({"HERRINGBONE_INSTANCE_TYPE": "ml.m5.large"}, ""),
        ({"TRAINING_JOB_NAME": "a"}, ""),
    ],
)
def test_a_configured_account_is_not_taken_over(run, tmp_path, env, said):
    (tmp_path / "keys.ini").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    done = run("import os, sagemaker; print(os.environ.get('AWS_ENDPOINT_URL'))", env={**NO_ACCOUNT, **env})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("None", env.get("AWS_ENDPOINT_URL", ""))
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
    assert not service_of(tmp_path / "home")


SEARCH = """
import boto3, json, sagemaker
from botocore.validate import ParamValidator
from herringbone.serve.model import find_operation
from sagemaker.analytics import HyperparameterTuningJobAnalytics
from sagemaker.pytorch import PyTorch
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

estimator = PyTorch(
    "fit.py", role=sagemaker.get_execution_role(), instance_type="ml.m5.large", instance_count=1, py_version="py310",
    framework_version="2.1", hyperparameters={"depth": 2},
)
tuner = HyperparameterTuner(
    estimator, "loss", {"rate": ContinuousParameter(0.1, 1)}, [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    max_jobs=2, max_parallel_jobs=1, objective_type="Minimize",
)
tuner.fit(wait=False)
name, client, session = tuner.latest_tuning_job.name, boto3.client("sagemaker"), sagemaker.Session()
begun = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)["HyperParameterTuningJobStatus"]
tuner.wait()
told = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
del told["ResponseMetadata"]
described = [tuner.describe(), session.describe_tuning_job(name), told]
best = client.describe_training_job(TrainingJobName=tuner.best_training_job())
listed = client.list_training_jobs_for_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
shape = find_operation("sagemaker", "DescribeHyperParameterTuningJob").output_shape
print(json.dumps({
    "begun": begun,
    "same": described[0] == described[1] and told.keys() == described[0].keys(),
    "wrong": [ParamValidator().validate(one, shape).generate_report() for one in described],
    "static": told["TrainingJobDefinition"]["StaticHyperParameters"],
    "best": told["BestTrainingJob"]["TrainingJobName"] == tuner.best_training_job(),
    "of": [best["TuningJobArn"].rpartition("/")[2] == name, best["HyperParameters"]["depth"]],
    "listed": [job["TrainingJobStatus"] for job in listed["TrainingJobSummaries"]],
    "names": [job["HyperParameterTuningJobName"] == name for job in
              client.list_hyper_parameter_tuning_jobs()["HyperParameterTuningJobSummaries"]],
    "values": [one["TrainingJobArn"].rpartition("/")[2] == one["TrainingJobName"] and one["CreationTime"].year > 2000
               for one in HyperparameterTuningJobAnalytics(name).training_job_summaries()],
    "tables": tuner.analytics().description() == described[0],
}))
"""
TRIAL = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
print(f"loss={parser.parse_known_args()[0].rate}")
"""


@pytest.mark.e2e
def test_a_search_without_an_account_is_described_as_at_aws(run, tmp_path):
    (tmp_path / "fit.py").write_text(TRIAL)
    done = run(SEARCH, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "begun": "InProgress",
        "same": True,
        "wrong": ["", "", ""],
        "static": {"depth": "2", "_tuning_objective_metric": "loss"},
        "best": True,
        "of": [True, "2"],
        "listed": ["Completed", "Completed"],
        "names": [True],
        "values": [True, True],
        "tables": True,
    }
