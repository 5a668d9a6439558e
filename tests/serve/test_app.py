"""The application without a network: who may do what, and bodies of any kind."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time

import msgspec
import pytest

pytest.importorskip("starlette")
pytest.importorskip("botocore")

from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.serve import app as module
from herringbone.serve.actions import ACTIONS, answers_of
from herringbone.serve.app import Service, Verifier
from herringbone.serve.catalog import Catalog
from herringbone.serve.cloudwatch import logs as logs_module
from herringbone.serve.cloudwatch.logs import LogOperations
from herringbone.serve.cloudwatch.statistics import Statistics
from herringbone.serve.errors import invalid
from herringbone.serve.identity import Identity
from herringbone.serve.links import Held
from herringbone.serve.records import Audit, Records, ServiceRecord
from herringbone.serve.settings import HostType, Mapping, Quota, Settings
from herringbone.serve.trainings import Trainings
from herringbone.serve.tuning_jobs import Tunings
from herringbone_contract.errors import InputError
from tests.serve.signing import ADA, ADMIN, BOB, LOOP, Keys, answer_to, send, sent_to, signed
from tests.serve.test_members import REQUEST

MAPPING = Mapping(instance_types={"ml.p4d.*": HostType(hosts=3), "ml.m5.*": HostType()}, quotas={"bob": Quota(jobs=1)})


class Client:
    """Calls of one application, each a second after the last one."""

    def __init__(self, home: Home, **settings) -> None:
        self.home = home
        self.now = time.time()
        self.settings = Settings(backend="local_process", mapping=MAPPING, **settings)
        self.trainings = Trainings(home, self.settings, clock=lambda: self.now)
        self.tunings = Tunings(self.trainings)
        catalog, logs = Catalog(self.trainings, self.tunings), LogOperations(self.trainings, home)
        parts = logs, Statistics(self.trainings), Identity(self.settings)
        operations = answers_of(self.trainings, self.tunings, catalog, *parts)
        assert set(ACTIONS) == set(operations)
        verifier = Verifier(Keys(ADA, BOB, ADMIN), self.settings, clock=lambda: self.now)
        self.make = lambda **limits: Service(
            verifier, operations, self.settings, Audit(home.path / "audit.log"), **limits
        )
        self.app = self.make()

    def call(self, name, members=None, key=ADA, **options):
        self.now += 1
        target = name if "." in name else f"SageMaker.{name}"
        body = members if isinstance(members, bytes) else json.dumps(members or {}).encode()
        return send(self.app, signed(key, target, body, now=self.now, **options), body)

    def add(self, name, owner="ada", **columns):
        """Put a job into the home, as if the service had submitted it."""
        record = {"name": name, "backend": "local_process", "plan": '{"hosts": [{"name": "algo-1"}]}'}
        row = JobRecord(**{**record, "created": self.now, "hosts": 1, **columns})
        JobIndex(self.home.index).add(row)
        request = {**REQUEST, "TrainingJobName": name}
        self.trainings.records.add(
            ServiceRecord(name=name, owner=owner, region="us-east-1", created=0.0, request=request, submitted=True)
        )


OVER = {"status": "Completed", "secondary_status": "Completed", "started": 1.0, "ended": 2.0}


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    home = Home(tmp_path / "home")
    home.make()
    client = Client(home)
    yield client
    client.trainings.records.close()


def test_a_job_of_another_user_does_not_exist(client):
    client.add("digits-1", **OVER)
    stream = {"logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamName": "digits-1/algo-1-0"}
    arn = {"ResourceArn": "arn:aws:sagemaker:us-east-1:000000000000:training-job/digits-1"}
    named = {"TrainingJobName": "digits-1"}
    calls = {
        "DescribeTrainingJob": named,
        "StopTrainingJob": named,
        "DeleteTrainingJob": named,
        "UpdateTrainingJob": named,
        "ListTags": arn,
        "AddTags": {**arn, "Tags": []},
        "DeleteTags": {**arn, "TagKeys": []},
        "Logs_20140328.GetLogEvents": stream,
    }
    for name, members in calls.items():
        service = "logs" if "." in name else "sagemaker"
        absent = json.loads(json.dumps(members).replace("digits-1", "absent"))
        foreign = client.call(name, members, key=BOB, service=service)
        assert foreign == client.call(name, absent, key=BOB, service=service)
        assert foreign[0] == 400
    assert client.call("ListTrainingJobs", key=BOB)[1] == {"TrainingJobSummaries": []}
    assert client.call("Search", {"Resource": "TrainingJob"}, key=BOB)[1]["TotalHits"]["Value"] == 0
    assert client.call("DescribeTrainingJob", named, key=ADMIN)[0] == 200
    assert client.call("CreateTrainingJob", {**REQUEST, **named}, key=BOB)[1]["__type"] == "ResourceInUse"


def test_the_life_of_tags_and_of_a_job_that_is_over(client):
    client.add("digits-1", **OVER)
    arn = "arn:aws:sagemaker:us-east-1:000000000000:training-job/digits-1"
    tags = [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]
    assert client.call("AddTags", {"ResourceArn": arn, "Tags": tags}) == (200, {"Tags": tags})
    assert client.call("DeleteTags", {"ResourceArn": arn, "TagKeys": ["a"]}) == (200, {})
    assert client.call("ListTags", {"ResourceArn": arn}) == (200, {"Tags": tags[1:]})
    assert "in status Completed" in client.call("StopTrainingJob", {"TrainingJobName": "digits-1"})[1]["message"]
    assert client.call("DeleteTrainingJob", {"TrainingJobName": "digits-1"}) == (200, {})
    assert client.call("DescribeTrainingJob", {"TrainingJobName": "digits-1"})[1]["__type"] == "ValidationException"
    assert list((client.home.path / "service" / "jobs").iterdir()) == []


def test_pages_of_jobs(client):
    for number in range(5):
        client.add(f"job-{number}", created=float(number), **OVER)
    first = client.call("ListTrainingJobs", {"MaxResults": 3})[1]
    assert [job["TrainingJobName"] for job in first["TrainingJobSummaries"]] == ["job-4", "job-3", "job-2"]
    rest = {"MaxResults": 3, "NextToken": first["NextToken"]}
    second = client.call("ListTrainingJobs", rest)[1]
    assert [job["TrainingJobName"] for job in second["TrainingJobSummaries"]] == ["job-1", "job-0"]
    assert "NextToken" not in second
    # A token is of one user, and of one list.
    assert client.call("ListTrainingJobs", rest, key=BOB)[1]["__type"] == "ValidationException"
    assert client.call("ListTrainingJobs", {**rest, "StatusEquals": "Failed"})[1]["__type"] == "ValidationException"
    assert len(client.call("ListTrainingJobs", {"CreationTimeAfter": 2.5})[1]["TrainingJobSummaries"]) == 2


def test_quotas_of_hosts_and_of_users(client):
    client.add("digits-0", owner="bob", client="1 1 1", place="elsewhere 1 1 1")
    limited = {**REQUEST, "TrainingJobName": "digits-2"}
    by_host = client.call("CreateTrainingJob", limited)
    assert by_host[1]["__type"] == "ResourceLimitExceeded"
    assert "utilization of 2 Instances and a request delta of 2" in by_host[1]["message"]
    assert "bob has 1 running" in client.call("CreateTrainingJob", limited, key=BOB)[1]["message"]


def test_a_refused_job_leaves_nothing(client, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    request = {**REQUEST, "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}}
    status, answer = client.call("CreateTrainingJob", request)
    assert (status, answer["__type"]) == (400, "ValidationException")
    assert "s3://mine/data: no AWS credentials" in answer["message"]
    assert client.trainings.records.all() == []
    assert JobIndex(client.home.index).names() == []


def test_a_job_in_a_folder_that_a_running_job_writes_is_refused_and_leaves_nothing(client, tmp_path):
    home, buckets = client.home, tmp_path / "buckets"
    (buckets / "mine" / "checkpoints" / "digits" / "x").mkdir(parents=True)
    client.trainings.settings = msgspec.structs.replace(client.settings, buckets=str(buckets))
    client.add("running", client="1 1 1", place="elsewhere 1 1 1")
    client.trainings.records.change("running", held=Held(writes=("mine/checkpoints/digits/",)))
    request = {**REQUEST, "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}}
    request["CheckpointConfig"] = {"S3Uri": "s3://mine/checkpoints/digits/x"}
    answer = client.call("CreateTrainingJob", request)[1]
    assert answer["__type"] == "ResourceInUse"
    assert "s3://mine/checkpoints/digits/x is in s3://mine/checkpoints/digits, to which another" in answer["message"]
    # Of a restarted service, too: the places are in the record.
    assert json.loads((home.path / "service/jobs/running.json").read_text())["held"]["writes"]
    JobIndex(home.index).update("running", **OVER)
    # The next refusal is of the link that the job has left.
    (buckets / "mine" / "checkpoints" / "digits" / "x").rmdir()
    (buckets / "mine" / "checkpoints" / "digits" / "x").symlink_to(home.path)
    assert "digits/x is a link" in client.call("CreateTrainingJob", request)[1]["message"]
    assert [record.name for record in client.trainings.records.all()] == ["running"]


def test_calls_are_counted_replays_and_strangers_refused(client):
    assert client.call("Other")[1]["__type"] == "UnknownOperationException"
    unsupported = client.call("CreateEndpoint")
    assert (unsupported[0], unsupported[1]["__type"]) == (501, "UnsupportedOperation")
    assert client.call("Logs_20140328.GetLogEvents")[1]["__type"] == "UnknownOperationException"
    assert client.call("ListTrainingJobs", region="eu-west-1")[1]["__type"] == "InvalidSignatureException"
    assert client.call("ListTrainingJobs", key=type(ADA)(name="x", key_id="X", secret="x"))[0] == 403  # noqa: S106
    body = b'{"TrainingJobName": "x"}'
    request = signed(ADA, "SageMaker.StopTrainingJob", body, now=client.now)
    assert send(client.app, request, body)[1]["__type"] == "ValidationException"
    assert "received before" in send(client.app, request, body)[1]["message"]
    client.now += 301
    assert send(client.app, request, body)[1]["__type"] == "RequestExpired"
    answers = [send(client.app, signed(ADA, "SageMaker.ListTrainingJobs", b"{}", now=client.now), b"{}")]
    answers += [send(client.app, signed(ADA, "SageMaker.X", b"{}", now=client.now), b"{}") for _ in range(250)]
    assert {answer["__type"] for _, answer in answers[-10:]} == {"ThrottlingException"}
    assert client.call("ListTrainingJobs", key=BOB)[0] == 200


def test_regions_are_one_where_any_may_be_named(client, tmp_path):
    home = Home(tmp_path / "another")
    home.make()
    personal = Client(home, any_region=True)
    try:
        personal.add("digits-1", **OVER)
        (entry,) = personal.call("ListTrainingJobs", region="eu-west-1")[1]["TrainingJobSummaries"]
        assert entry["TrainingJobArn"].startswith("arn:aws:sagemaker:us-east-1:")
    finally:
        personal.trainings.records.close()


def test_a_form_is_no_call_of_a_service_of_json_and_its_error_is_xml(client):
    body, form = b"Action=AssumeRole&Version=1", "application/x-www-form-urlencoded; charset=utf-8"
    for service, code in (("sagemaker", "UnknownOperationException"), ("sts", "InvalidAction")):
        request = signed(ADA, "", body, now=client.now + 1, service=service, content_type=form)
        status, text = LOOP.run_until_complete(sent_to(client.app, request, body))
        assert status == (400 if service == "sagemaker" else 501)
        assert f"<Code>{code}</Code>".encode() in text


def test_the_audit_has_a_line_for_each_call_and_no_secret(client):
    client.call("CreateTrainingJob", {**REQUEST, "Environment": {"MY_TOKEN": "hush"}})
    client.call("ListTrainingJobs", key=BOB)
    path = client.home.path / "audit.log"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["key"], line["operation"], line["status"]) for line in lines] == [
        ("ada", "CreateTrainingJob", 400),
        ("bob", "ListTrainingJobs", 200),
    ]
    assert "hush" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_large_and_slow_bodies(client):
    big = b"x" * (module.MAX_BODY_BYTES // 2 + 1)
    request = signed(ADA, "SageMaker.ListTrainingJobs", big, now=client.now)
    assert send(client.app, request, big, big)[0] == 413
    assert send(client.app, request, *[b"{}"], *[b""] * 3)[0] == 403
    assert send(client.make(body_seconds=0.0), request, b"{}")[0] == 408


def test_one_service_for_a_home(client):
    with pytest.raises(InputError, match="another `herringbone serve`"):
        Records(client.home)


def test_a_submission_that_was_cut_is_settled(client, tmp_path):
    """What a service that was killed in the midst of CreateTrainingJob leaves, the next one decides on."""
    records = client.trainings.records
    gone = {"status": "Failed", "secondary_status": "Failed", "ended": 2.0, "failure": '{"message": "lost"}'}
    client.add("no-controller", **gone)
    client.add("trains", **OVER)
    for name in ("no-row", "no-controller", "trains"):
        records.add(ServiceRecord(name=name, owner="ada", region="us-east-1", created=0.0, request=REQUEST))
        records.change(name, submitted=False)
    (client.home.path / "service" / "jobs" / ".new-half").write_text("{")
    client.trainings.recover()
    assert {record.name: record.submitted for record in records.all()} == {"trains": True}
    assert JobIndex(client.home.index).names() == ["trains"]


WORDS = [
    "HyperParameterTuningJobName",
    "HyperParameterTuningJobConfig",
    "TrainingJobDefinition",
    "TrainingJobName",
    "NextToken",
    "MaxResults",
    "Tags",
    "SearchExpression",
    "Filters",
    "Resource",
    "limit",
    "CreationTimeAfter",
]
VALUES = [None, True, -1, 0, 1e308, 10**30, "", "x" * 2000, "\ud800", "../..", [], {}, [[[]]], "TrainingJob", "ü"]
TARGETS = [
    *(("sagemaker", f"SageMaker.{verb}HyperParameterTuningJob") for verb in ("Create", "Describe", "Stop")),
    *(("sagemaker", f"SageMaker.{name}") for name in ("CreateTrainingJob", "ListTrainingJobs", "Search", "AddTags")),
    *(("logs", f"Logs_20140328.{name}") for name in ("GetLogEvents", "FilterLogEvents", "DescribeLogStreams")),
]


def mutated(rng):
    """Return a body: bytes of any kind, JSON of any kind, or a request in which one member is wrong."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return b"[" * rng.randrange(100_000) if rng.random() < 0.05 else b'{"a":' * rng.randrange(300)
    members = {rng.choice(WORDS): rng.choice(VALUES) for _ in range(rng.randrange(5))}
    if kind == 2:
        members = json.loads(json.dumps(REQUEST))
        place = members
        while isinstance(place, (dict, list)) and place:
            name = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[name], (dict, list)) or rng.random() < 0.3:
                if isinstance(place, dict) and rng.random() < 0.3:
                    del place[name]
                else:
                    place[name] = rng.choice(VALUES)
                break
            place = place[name]
    return json.dumps(members).encode()


def fuzz(client, count, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        body = mutated(rng)
        service, target = rng.choice(TARGETS)
        status, answer = client.call(target, body, service=service)
        assert status in (200, 400), (target, body, answer)


@pytest.mark.parametrize("value", [1e308, -1e300, 1e300, -1, "-1", True, False, "never", "nan", {}, 10**30])
def test_times_that_are_none(client, value):
    asked = [("ListTrainingJobs", "CreationTimeAfter"), ("ListHyperParameterTuningJobs", "LastModifiedTimeBefore")]
    assert [client.call(name, {member: value})[1]["__type"] for name, member in asked] == ["ValidationException"] * 2


def test_fuzzed_bodies(client):
    """Each is refused with a reason, or answered; nothing is kept of it."""
    client.add("digits-1", **OVER)
    fuzz(client, 1000)
    assert [record.name for record in client.trainings.records.all()] == ["digits-1"]
    assert JobIndex(client.home.index).names() == ["digits-1"]


def test_filter_log_events_goes_on_where_it_stopped_reading(client, monkeypatch):
    client.add("digits-1", **OVER)
    client.add("digits-2", **OVER)
    for job in ("digits-1", "digits-2"):
        log = client.home.job(job).log("algo-1")
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"2026-11-21T11:44:00.000000Z [algo-1:0] line {number:05d}\n" for number in range(1000)))
    monkeypatch.setattr(logs_module, "_SCAN_BYTES", 10_000)
    members = {"logGroupName": logs_module.GROUP, "logStreamNamePrefix": "digits", "filterPattern": "00999"}
    found, calls = [], 0
    while True:
        status, page = client.call("Logs_20140328.FilterLogEvents", members, service="logs")
        assert status == 200
        found += [event["logStreamName"].partition("/")[0] for event in page["events"]]
        calls += 1
        if "nextToken" not in page:
            break
        members["nextToken"] = page["nextToken"]
    assert found == ["digits-1", "digits-2"]
    assert 10 <= calls <= 14
    # The table refuses it, and no answer ignores it.
    backwards = client.call("Logs_20140328.FilterLogEvents", {**members, "startFromHead": True}, service="logs")
    assert backwards[1]["message"] == "startFromHead: events come from the oldest to the newest"


def test_a_user_with_slow_creations_delays_no_other(client):
    """Ada fills the threads of her key; bob's creation and his reads do not wait for hers."""
    gate, begun = threading.Event(), []

    def planned(request, backend, name):
        begun.append(name)
        if name.startswith("slow"):
            assert gate.wait(60)
        raise invalid("planned")

    client.trainings.plan = planned
    members = {**REQUEST, "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}}

    async def create(name, key):
        body = json.dumps({**members, "TrainingJobName": name}).encode()
        client.now += 1
        return await answer_to(client.app, signed(key, "SageMaker.CreateTrainingJob", body, now=client.now), body)

    async def all_of_them():
        slow = [asyncio.create_task(create(f"slow-{number}", ADA)) for number in range(60)]
        while not begun:
            await asyncio.sleep(0.01)
        quick = await create("quick", BOB)
        assert not any(task.done() for task in slow)
        gate.set()
        return quick, [await task for task in slow]

    try:
        quick, slow = LOOP.run_until_complete(all_of_them())
    finally:
        gate.set()
    assert quick == (400, {"__type": "ValidationException", "message": "planned"})
    assert {answer[1]["message"] for answer in slow} == {"planned"}
    assert begun[1] == "quick"


def test_a_key_has_a_bounded_line(client):
    client.app = client.make(max_waiting=0)
    status, answer = client.call("ListTrainingJobs")
    assert (status, answer["__type"]) == (400, "ThrottlingException")
    assert client.home.path.joinpath("audit.log").read_text().count("ThrottlingException") == 1
