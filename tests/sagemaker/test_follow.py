"""Follow jobs of a scripted service to their end: states, stop, messages, and interrupted submissions."""

import json
import os
import threading
import time

import pytest

from herringbone import Estimator, JobFailedError, JobNotFoundError, TensorFlow, TrainingJob, attach
from herringbone.backends.listing import all_jobs
from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.records.index import JobIndex, JobRecord
from herringbone.show.console import Console
from herringbone.system.processes import identity
from herringbone_contract.errors import AwsCredentialsError, InputError, OptionError, UnsupportedError
from herringbone_contract.failure import Failure, Frame, summary
from tests.sagemaker.conftest import REGION
from tests.sagemaker.service import described, life

STATES = (("Starting", "Preparing the instances"), ("Downloading", "Downloading input data"), ("Training", "Go"))
SECONDS = {"TrainingTimeInSeconds": 300, "BillableTimeInSeconds": 120, "EnableManagedSpotTraining": True}
FAILURE = Failure("algo-2", 9, 1, "ValueError", "bad batch", (Frame("train.py", 4, "run", "raise ValueError"),))


@pytest.fixture
def make_job(service, backend, boto):
    """Return a function that adds a job with scripted descriptions and returns its handle."""

    def make(*states, name="digits-1", **members):
        service.jobs[name] = [described(name, **members, **state) for state in ({}, *states)]
        backend.find(name, boto)
        return TrainingJob(name, backend)

    return make


def price(dollars, component="Training"):
    dimension = {"pricePerUnit": {"USD": str(dollars)}}
    return json.dumps(
        {
            "product": {"attributes": {"component": component, "instanceName": "ml.g5.xlarge"}},
            "terms": {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}},
        }
    )


def test_a_job_from_start_to_bill(make_job, service, capsys):
    job = make_job(*life(*STATES, ModelArtifacts={"S3ModelArtifacts": "s3://mine/model.tar.gz"}, **SECONDS))
    service.write("digits-1/algo-1-1", ["[algo-1:0] epoch 1", "[algo-1:0] epoch 2"])
    service.products = [price(1.5), price(9, "Hosting")]
    assert capsys.readouterr().err == f"job digits-1 is not known here; asking SageMaker in {REGION}\n"
    job.follow(Console())
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        *("[algo-1:0] epoch 1", "[algo-1:0] epoch 2"),
        "job digits-1: Completed after 300.0 s, model: s3://mine/model.tar.gz",
    ]
    assert err.splitlines() == [
        "digits-1: Starting: Preparing the instances",
        "digits-1: Downloading: Downloading input data",
        "digits-1: Training: Go",
        "job digits-1: trained 300 s, billed 120 s, 60 % saved by spot, about $0.05",
    ]
    assert (job.status, job.model_data) == ("Completed", "s3://mine/model.tar.gz")
    assert round(job.duration) == 300
    assert job.describe()["BillableTimeInSeconds"] == 120
    assert job.bill == err.splitlines()[-1]


def test_a_price_is_requested_once_and_its_absence_is_no_error(make_job, service, backend):
    make_job(*life(**SECONDS)).wait()
    make_job(*life(**SECONDS), name="digits-2").wait()
    service.fail("GetProducts", 9, "AccessDeniedException")
    assert backend.bill("digits-1") == "job digits-1: trained 300 s, billed 120 s, 60 % saved by spot"
    assert backend.bill("digits-2") == "job digits-2: trained 300 s, billed 120 s, 60 % saved by spot"
    assert service.calls["GetProducts"] == 1


def test_a_failure_comes_back_with_host_rank_and_frames(make_job):
    job = make_job(*life(status="Failed", FailureReason=f"AlgorithmError: {summary(FAILURE)}, exit code: 1"))
    with pytest.raises(JobFailedError, match="rank 9 on algo-2: ValueError: bad batch") as caught:
        job.follow()
    assert caught.value.failure == job.failure == FAILURE


def test_a_capacity_error_says_what_to_try(make_job):
    job = make_job(*life(status="Failed", FailureReason="CapacityError: Unable to provision requested ML capacity."))
    with pytest.raises(JobFailedError, match=r"CapacityError: Unable(?s:.)*try again later, another instance_type"):
        job.follow()


@pytest.mark.parametrize(
    ("secondary", "reason"),
    [("MaxRuntimeExceeded", "max_run was over"), ("Interrupted", "its hosts were taken away")],
)
def test_the_reason_of_a_stop_is_reported(make_job, capsys, secondary, reason):
    make_job(*life(status="Stopped", SecondaryStatus=secondary)).follow(Console())
    assert f"job digits-1 stopped before its end: {reason}" in capsys.readouterr().err


def test_stop_sends_one_request_and_waits_for_the_grace_period(make_job, service, backend):
    job = make_job({"SecondaryStatus": "Training"})
    with pytest.raises(UnsupportedError, match=r"^grace: SageMaker gives job digits-1 120 s"):
        job.stop(grace=5)
    job.stop()
    assert service.stopped == ["digits-1"]
    assert job.status == "Stopping"
    service.fail("StopTrainingJob", 1, "ValidationException", "The job is in status Stopping")
    backend.kill("digits-1")  # a second Ctrl-C does the same
    assert job.wait().status == "Stopped"
    job.stop()
    backend.kill("digits-1")
    assert service.stopped == ["digits-1"]


def test_a_job_that_ended_a_moment_ago_is_not_stopped(make_job, service, home, boto):
    make_job({"SecondaryStatus": "Training"})
    calm = SageMakerBackend(home=home)
    calm.find("digits-1", boto)
    assert calm.describe("digits-1").status == "InProgress"
    service.jobs["digits-1"] = [described("digits-1", **life()[-1])]
    service.fail("StopTrainingJob", 1, "ValidationException", "The job is in status Completed")
    calm.stop("digits-1")
    assert calm.describe("digits-1").status == "Completed"


def test_describe_keeps_to_its_pace_and_sends_nothing_for_an_ended_job(make_job, service, home):
    make_job({"SecondaryStatus": "Training"})
    calm = TrainingJob("digits-1", SageMakerBackend(home=home))
    requests = service.calls["DescribeTrainingJob"]
    assert [calm.secondary_status for _ in range(5)] == ["Training"] * 5
    assert service.calls["DescribeTrainingJob"] == requests + 1
    service.jobs["digits-1"] = [described("digits-1", **life()[-1])]
    TrainingJob("digits-1", SageMakerBackend(home=home)).wait()
    requests = service.calls["DescribeTrainingJob"]
    assert (attach("digits-1").status, service.calls["DescribeTrainingJob"]) == ("Completed", requests)


def test_expired_credentials_are_reported_once_and_read_again(make_job, service, capsys):
    job = make_job({"SecondaryStatus": "Training"})
    waiter = threading.Thread(target=job.wait, kwargs={"logs": True}, daemon=True)
    requests = service.calls["DescribeTrainingJob"]
    waiter.start()
    while service.calls["DescribeTrainingJob"] == requests:
        time.sleep(0.01)
    service.fail("DescribeTrainingJob", 5, "ExpiredTokenException")
    service.jobs["digits-1"] = [described("digits-1"), described("digits-1", **life()[-1])]
    waiter.join(30)
    err = capsys.readouterr().err
    assert err.count("the AWS credentials have expired; log in with `aws sso login`") == 1
    assert "AWS answers again: job digits-1" in err
    assert job.status == "Completed"


def test_no_line_is_lost_while_the_network_is_gone(make_job, service):
    job = make_job({"SecondaryStatus": "Training"})
    service.write("digits-1/algo-1-1", ["0"])
    lines = job.logs(follow=True)
    assert next(lines).text == "0"
    service.away = True

    def come_back():
        service.recover()
        service.jobs["digits-1"] = [described("digits-1", **life()[-1])]

    service.write("digits-1/algo-1-1", ["1", "2"])
    timer = threading.Timer(1.0, come_back)
    timer.start()
    assert [line.text for line in lines] == ["1", "2"]
    timer.join()


def test_missing_credentials_end_the_wait(make_job, home, monkeypatch):
    make_job({})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AwsCredentialsError, match=r"to find job digits-1 .* no AWS credentials were found"):
        TrainingJob("digits-1", SageMakerBackend(home=home)).wait()


def test_credentials_of_another_account_are_reported(make_job, service, home):
    make_job({})
    service.account = "210987654321"
    del service.jobs["digits-1"]
    with pytest.raises(JobNotFoundError, match=r"account 210987654321 has no .* submitted in account 123456789012"):
        TrainingJob("digits-1", SageMakerBackend(home=home)).status  # noqa: B018


@pytest.fixture
def make_claimed_job(service, home, backend, boto):
    """Return a function that adds the row of a job whose client has claimed its name."""

    def make(client, *, sent=True, request=None):
        home.make()
        location = json.dumps({"region": REGION, "account": "123456789012"})
        plan = json.dumps({"request": request or {}, "hosts": [{}]})
        row = JobRecord(name="a", backend="sagemaker", plan=plan, created=time.time(), client=client)
        JobIndex(home.index).add(row)
        if sent:
            JobIndex(home.index).update("a", service=location)
        backend.find("a", boto)
        return TrainingJob("a", backend)

    return make


DEAD_CLIENT = "1@1"


@pytest.mark.parametrize("sent", [True, False])
def test_a_client_that_died_before_it_created_the_job_leaves_a_failed_one(make_claimed_job, sent):
    job = make_claimed_job(DEAD_CLIENT, sent=sent)
    assert job.status == "Failed"
    assert job.failure.render() == "the job: it was never created: the client ended before it created the job"
    assert list(job.logs()) == []


def test_a_job_whose_client_is_still_preparing_it_is_starting(make_claimed_job):
    job = make_claimed_job(identity(os.getpid()))
    assert (job.status, job.secondary_status) == ("InProgress", "Starting")
    with pytest.raises(UnsupportedError, match="job a is still being submitted"):
        job.stop()


def test_a_job_that_its_dead_client_created_is_adopted(make_claimed_job, service):
    job = make_claimed_job(DEAD_CLIENT, request={"RoleArn": "arn:aws:iam::123456789012:role/train"})
    service.jobs["a"] = [described("a", SecondaryStatus="Training")]
    assert job.secondary_status == "Training"


def test_another_job_of_the_same_name_is_not_adopted(make_claimed_job, service):
    job = make_claimed_job(DEAD_CLIENT, request={"RoleArn": "arn:aws:iam::123456789012:role/mine"})
    service.jobs["a"] = [described("a")]
    assert "SageMaker has another job of that name" in job.failure.render()


def test_a_job_of_another_machine_is_found_by_name(service, home, monkeypatch):
    environment = {"EPOCHS": "3", "API_TOKEN": "hunter2"}
    service.jobs["theirs"] = [described("theirs", Environment=environment, HyperParameters={"epochs": "3"})]
    service.tags = [{"Key": "team", "Value": "vision"}]
    job = attach("theirs")
    assert job.plan.arguments.hyperparameters == {"epochs": 3}
    assert job.describe()["Tags"] == [{"Key": "team", "Value": "vision"}]
    assert job.plan.options.tags == ({"Key": "team", "Value": "vision"},)
    assert job.plan.environment == {"EPOCHS": "3", "API_TOKEN": "******"}
    assert job.status == "InProgress"
    assert service.calls["ListTags"] == 1
    assert attach("theirs").plan == job.plan
    with pytest.raises(JobNotFoundError, match=rf"no job 'gone' in .*no training job 'gone' in account 1.*{REGION}"):
        attach("gone")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(
        JobNotFoundError, match=r"no job 'gone' in .*; SageMaker was not asked: .*no AWS region is set$"
    ):
        attach("gone")


def test_attach_of_a_class_returns_an_estimator_of_that_class(service, home):
    hyperparameters = {"model_dir": '"s3://mine/m"', "epochs": "3"}
    service.jobs["theirs"] = [described("theirs", HyperParameters=hyperparameters)]
    tensorflow = TensorFlow.attach("theirs")
    assert tensorflow.hyperparameters()["model_dir"] == '"s3://mine/m"'
    assert tensorflow.model_dir == "s3://mine/m"
    assert Estimator.attach("theirs").hyperparameters()["model_dir"] == '"s3://mine/m"'
    service.jobs["none"] = [described("none", ResourceConfig={})]
    with pytest.raises(UnsupportedError, match="a job without hosts of its own"):
        attach("none")


def test_a_session_given_to_attach_sends_the_requests(make_job, service, boto, monkeypatch):
    make_job({})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AwsCredentialsError):
        attach("digits-1").status  # noqa: B018
    assert attach("digits-1", boto).status == "InProgress"
    with pytest.raises(OptionError, match="sagemaker_session: str is neither"):
        attach("digits-1", "session")


def test_a_job_without_a_model_has_none_to_download(make_job, tmp_path):
    with pytest.raises(InputError, match="job digits-1 is InProgress and has no model"):
        make_job({}).download_model(tmp_path / "model")


def test_a_listing_is_current_and_reports_what_it_could_not_ask(make_job, service, home):
    make_job(*life(), name="ended").wait()
    make_job({"SecondaryStatus": "Training"}, name="running")
    messages = []
    requests = service.calls["DescribeTrainingJob"]
    assert {record.name: record.secondary_status for record in all_jobs(messages.append)} == {
        "running": "Training",
        "ended": "Completed",
    }
    assert (messages, service.calls["DescribeTrainingJob"] - requests) == ([], 1)
    service.fail("DescribeTrainingJob", 9, "ExpiredTokenException")
    assert len(all_jobs(messages.append)) == 2
    assert [text.partition("`; ")[2] for text in messages] == ["states of sagemaker jobs are as they were last seen"]
    service.recover()
    service.fail("DescribeTrainingJob", 9, "Throttling")
    assert len(all_jobs(messages.append, patience=0.2)) == 2
    assert messages[1:] == ["no answer within 0 s: some states are as they were last seen"]
