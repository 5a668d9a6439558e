"""Tuning jobs without a network: their requests, their limits and their names."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.sdk.tuner.service.calls import CASES
from tests.sdk.tuner.service.test_peer import peer_request

pytest.importorskip("starlette")
pytest.importorskip("botocore")

from herringbone.plan.request import make_request
from herringbone.records.index import JobIndex, JobRecord
from herringbone.serve.actions import check_fates
from herringbone.serve.errors import ApiError
from herringbone.serve.limits import Use, check_limits
from herringbone.serve.links import Held
from herringbone.serve.model import check_answer, find_operation
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import HostType, Mapping, Quota, Settings
from herringbone.serve.translate import translate
from herringbone.serve.tunings import members as answers
from herringbone.serve.tunings.members import (
    check_complete,
    definition_for,
    shared_request,
    stored_tuning,
    trial_request,
)
from herringbone.serve.tunings.trials import use_of
from herringbone.tuner.definition import PriorTrial
from herringbone.tuner.look import TuningLook
from herringbone.tuner.searcher.trial_jobs import TrialJobs
from herringbone.tuner.store import TrialRecord, TuningRecord, TuningState, encode_record
from herringbone.tuner.trials import Proposal
from herringbone_contract.errors import InputError
from tests.serve.signing import ADMIN, BOB
from tests.serve.test_app import client  # noqa: F401 - a fixture
from tests.serve.tuning_requests import CATEGORICAL, CONTINUOUS, NAME, tuning, with_static, with_trial

SETTINGS = Settings(backend="local_process", account="123456789012")
CONFIG = "HyperParameterTuningJobConfig"
GOLDEN = [case for case in CASES if not {"we_refuse", "they_refuse", "estimators"} & case.keys()]


def accepted(request):
    """Return the definition and the estimator of a request, which passed everything that precedes a plan."""
    check_fates("CreateHyperParameterTuningJob", request)
    check_complete(request)
    definition = definition_for(request, 7)
    return definition, translate(shared_request(request), SETTINGS)


REFUSED = {
    # local_process runs no image.
    "own-program": "HyperParameters.sagemaker_program: missing",
    "hyperband": "StaticHyperParameters one of epochs, numepochs",
    "hyperband-without-config": "StaticHyperParameters one of epochs, numepochs",
    "completion": "ConvergenceDetected: AWS does not document its rule",
    "everything-of-a-trial": "HyperParameterTuningResourceConfig.VolumeKmsKeyId: nothing here is encrypted",
    "estimator-name": "one search has one definition here",
}


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_the_golden_requests_of_the_peer(case):
    """Each request of AWS's SDK is searched as it says, or refused by the name of its member."""
    request = json.loads(json.dumps(peer_request(case)))
    if (reason := REFUSED.get(case["name"])) is not None:
        with pytest.raises(ApiError, match=reason) as caught:
            accepted(request)
        assert caught.value.code == "ValidationException"
        return
    definition, translated = accepted(request)
    config = request[CONFIG]
    kinds = [entries for kind, entries in config["ParameterRanges"].items() if kind != "AutoParameters"]
    names = {entry["Name"] for entries in kinds for entry in entries}
    assert names <= definition.ranges.keys() if "Autotune" in request else names == definition.ranges.keys()
    assert not definition.ranges.keys() & definition.static.keys()
    assert (definition.strategy, definition.seed) == (config["Strategy"], config.get("RandomSeed", 7))
    assert translated.arguments.instance_type == "local_process"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"TrainingJobDefinition": None}, "TrainingJobDefinition: missing"),
        ({CONFIG: {"HyperParameterTuningJobObjective": None}}, "HyperParameterTuningJobObjective: missing"),
        ({CONFIG: {"ResourceLimits": {"MaxParallelTrainingJobs": 101}}}, "MaxParallelTrainingJobs: 101; at most 100"),
        ({CONFIG: {"ParameterRanges": {}}}, "ParameterRanges: 0 ranges"),
        ({CONFIG: {"Strategy": "Grid"}}, "'point' is of ContinuousParameter; Grid takes"),
        ({CONFIG: {"ParameterRanges": {"IntegerParameterRanges": [{**CONTINUOUS, "MaxValue": "a"}]}}}, "unknown here"),
        ({CONFIG: {"ParameterRanges": {"AutoParameters": [{"Name": "a", "ValueHint": "1"}]}}}, "give Autotune"),
        ({"TrainingJobDefinition": {"TuningObjective": {"Type": "Minimize", "MetricName": "a"}}}, "TuningObjective"),
        ({"TrainingJobDefinition": {"HyperParameterTuningResourceConfig": None}}, "ResourceConfig is missing"),
    ],
    ids=str,
)
def test_requests_that_are_refused(changes, text):
    request = tuning("a")
    for member, value in changes.items():
        merged = {**request[member], **value} if value is not None else {}
        request[member] = {name: member for name, member in merged.items() if member is not None}
    with pytest.raises(ApiError, match=text):
        accepted({name: value for name, value in request.items() if value})


def test_secrets_are_not_stored():
    request = with_static(with_trial(tuning("a"), Environment={"MY_TOKEN": "hush", "MODE": "fast"}), api_key="hush")
    request[CONFIG]["ParameterRanges"]["AutoParameters"] = [{"Name": "password", "ValueHint": "hush"}]
    stored = json.dumps(stored_tuning(request))
    assert "hush" not in stored
    assert '"MODE":"fast"' in stored.replace(" ", "")


def record(request, name="a", owner="ada", **members):
    return ServiceRecord(name=name, owner=owner, region="us-east-1", created=1.0, request=request, **members)


def test_a_tuning_job_uses_all_hosts_of_its_trials_from_the_start():
    use = use_of(record(tuning("a", jobs=3, parallel=2)))
    assert (use.jobs, use.hosts) == (2, [("ml.m5.large", 1)])
    assert use_of(record(tuning("a", jobs=1, parallel=2))).jobs == 1
    mapping = Mapping(instance_types={"ml.m5.*": HostType(hosts=3)}, quotas={"bob": Quota(jobs=2)})
    check_limits(Use("bob", use.hosts, 2), [Use("ada", use.hosts, 1)], mapping)
    with pytest.raises(ApiError, match="utilization of 2 Instances and a request delta of 2"):
        check_limits(use, [use], mapping)
    with pytest.raises(ApiError, match="bob has 1 running training jobs, wants 2 more at once, and may have 2"):
        check_limits(Use("bob", use.hosts, 2), [Use("bob", use.hosts, 1)], mapping)


def test_a_tuning_job_as_it_is_described():
    """Its shape is botocore's, also for values that JSON has not."""
    lists = {"ContinuousParameterRanges": [CONTINUOUS], "CategoricalParameterRanges": [CATEGORICAL]}
    request = with_static(tuning("a", ParameterRanges=lists), epochs="2")
    definition = msgspec.structs.replace(
        definition_for({**request, "WarmStartConfig": {
            "WarmStartType": "IdenticalDataAndAlgorithm", "ParentHyperParameterTuningJobs": [{NAME: "p"}]}}, 7),
        priors=(PriorTrial({"point": 3.0, "word": "good"}, 0.5, "p", "p-001"),),
    )  # fmt: skip
    values = {"point": 2.5, "word": "bad"}
    over = {"proposed": 2.0, "ended": 6.0, "status": "Completed"}
    trials = [
        TrialRecord(number=0, job="a-001", values=values, objective=1.5, **over),
        TrialRecord(number=1, job="a-002", values=values, objective=float("nan"), **over),
        TrialRecord(number=2, job="a-003", values=values, proposed=3.0),
    ]
    search = TuningLook(definition=definition, trials=trials, status="Stopping", backend="local_process", created=1.0)
    look = answers.Look(record(request), search, {"p-001": 9})
    answer = answers.description(look, SETTINGS)
    check_answer(find_operation("sagemaker", "DescribeHyperParameterTuningJob"), answer)
    assert answer["HyperParameterTuningJobStatus"] == "Stopping"
    assert answer["TrainingJobStatusCounters"]["Completed"] == 2
    assert answer["ObjectiveStatusCounters"] == {"Succeeded": 1, "Pending": 1, "Failed": 1}
    assert answer["BestTrainingJob"]["TunedHyperParameters"] == {"point": "2.5", "word": '"bad"'}
    assert answer["OverallBestTrainingJob"]["TrainingJobName"] == "p-001"
    assert answer["ConsumedResources"] == {"RuntimeInSeconds": 8}
    assert "FinalHyperParameterTuningJobObjectiveMetric" not in answers.trial_summary(look, trials[1], SETTINGS)
    described = trial_request(request, definition, trials[0])["HyperParameters"]
    assert {"point": "2.5", "word": '"bad"', "epochs": "2"}.items() <= described.items()


def add_tuning(client, name, *, owner="ada", trials=1, status="Completed"):  # noqa: F811
    """Put a tuning job into the home as if the service had created it; its trials are over, and have no records."""
    request, store = tuning(name, jobs=5, parallel=2), client.trainings.trials.store(name)
    store.path.mkdir(parents=True)
    kept = {
        "backend": "local_process",
        "created": client.now,
        "request": {"arguments": {"instance_type": "local_process"}},
    }
    document = TuningRecord(definition=definition_for(request, 7), **kept)
    (store.path / "tuning.json").write_bytes(encode_record(document))
    store.set_state(TuningState(status=status, ended=None if status == "InProgress" else 5.0))
    for number in range(trials):
        job = f"{name}-{number + 1:03d}"
        columns = {"status": "Completed", "secondary_status": "Completed", "ended": 2.0, "created": client.now}
        plan = '{"hosts": [{"name": "algo-1"}]}'
        JobIndex(client.home.index).add(JobRecord(name=job, backend="local_process", plan=plan, hosts=1, **columns))
        proposed = store.add_proposal(Proposal(number, {"point": float(number)}), job)
        store.add_end(
            msgspec.structs.replace(
                proposed, status="Completed", objective=1.0 + number, curve=(1.0 + number,), ended=4.0
            )
        )
    client.trainings.records.tunings.add(record(request, name, owner=owner, tags={"team": "a"}, submitted=True))
    return store


def test_a_tuning_job_of_another_user_does_not_exist(client):  # noqa: F811
    add_tuning(client, "digits")
    arn = {"ResourceArn": "arn:aws:sagemaker:us-east-1:000000000000:hyper-parameter-tuning-job/digits"}
    for name, members in {
        "DescribeHyperParameterTuningJob": {NAME: "digits"},
        "StopHyperParameterTuningJob": {NAME: "digits"},
        "DeleteHyperParameterTuningJob": {NAME: "digits"},
        "ListTrainingJobsForHyperParameterTuningJob": {NAME: "digits"},
        "ListTags": arn,
        "AddTags": {**arn, "Tags": []},
        "DescribeTrainingJob": {"TrainingJobName": "digits-001"},
    }.items():
        absent = json.loads(json.dumps(members).replace("digits", "absent"))
        foreign, unknown = client.call(name, members, key=BOB), client.call(name, absent, key=BOB)
        assert json.loads(json.dumps(foreign).replace("digits", "absent")) == list(unknown)
        assert foreign[0] == 400
    assert client.call("ListHyperParameterTuningJobs", key=BOB)[1] == {"HyperParameterTuningJobSummaries": []}
    assert client.call("DescribeHyperParameterTuningJob", {NAME: "digits"}, key=ADMIN)[0] == 200
    taken = client.call("CreateHyperParameterTuningJob", tuning("digits"), key=BOB)
    assert taken[1]["__type"] in ("ResourceInUse", "AccessDeniedException")


def test_trials_become_training_jobs_that_outlive_their_tuning_job(client):  # noqa: F811
    add_tuning(client, "digits", trials=2)
    held = Held(writes=("mine/ck/digits-",))
    client.trainings.records.tunings.change("digits", held=held)
    jobs = client.call("ListTrainingJobs", {"SortBy": "Name", "SortOrder": "Ascending"})[1]["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in jobs] == ["digits-001", "digits-002"]
    arn = "arn:aws:sagemaker:us-east-1:000000000000:hyper-parameter-tuning-job/digits"
    assert client.call("DescribeTrainingJob", {"TrainingJobName": "digits-002"})[1]["TuningJobArn"] == arn
    # A trial may run on when its search has failed.
    assert client.trainings.records.get("digits-002").held == held
    tags = [{"Key": "b", "Value": "2"}]
    assert client.call("AddTags", {"ResourceArn": arn, "Tags": tags})[1]["Tags"][1:] == tags
    assert client.call("ListTags", {"ResourceArn": jobs[0]["TrainingJobArn"]})[1]["Tags"] == [
        {"Key": "team", "Value": "a"}
    ]
    # A trial that is deleted stays deleted.
    assert client.call("DeleteTrainingJob", {"TrainingJobName": "digits-001"}) == (200, {})
    assert client.call("DescribeTrainingJob", {"TrainingJobName": "digits-001"})[0] == 400
    assert client.call("DeleteHyperParameterTuningJob", {NAME: "digits"}) == (200, {})
    assert client.call("DescribeHyperParameterTuningJob", {NAME: "digits"})[1]["__type"] == "ResourceNotFound"
    assert client.call("DescribeTrainingJob", {"TrainingJobName": "digits-002"})[0] == 200
    assert not client.home.tuning("digits").exists()


def test_nobody_takes_the_name_of_a_trial(client):  # noqa: F811
    """A search would take another user's job of that name for its own, and read its metrics."""
    add_tuning(client, "digits", status="InProgress")
    assert client.trainings.trials.owns_name("digits-002")
    assert not client.trainings.trials.owns_name("digits-2")
    assert not client.trainings.trials.owns_name("letters-002")


def test_pages_of_tuning_jobs_and_of_trials(client):  # noqa: F811
    for name in ("b", "a", "c"):
        add_tuning(client, name, trials=3)
    page = client.call("ListHyperParameterTuningJobs", {"MaxResults": 2})[1]
    assert [job[NAME] for job in page["HyperParameterTuningJobSummaries"]] == ["a", "b"]
    page = client.call("ListHyperParameterTuningJobs", {"MaxResults": 2, "NextToken": page["NextToken"]})[1]
    assert [job[NAME] for job in page["HyperParameterTuningJobSummaries"]] == ["c"]
    members = {NAME: "a", "SortBy": "FinalObjectiveMetricValue", "SortOrder": "Descending", "MaxResults": 2}
    page = client.call("ListTrainingJobsForHyperParameterTuningJob", members)[1]
    assert [job["TrainingJobName"] for job in page["TrainingJobSummaries"]] == ["a-003", "a-002"]
    # A token of one search is none of another.
    foreign = {**members, NAME: "b", "NextToken": page["NextToken"]}
    assert client.call("ListTrainingJobsForHyperParameterTuningJob", foreign)[0] == 400
    found = client.call(
        "Search",
        {
            "Resource": "HyperParameterTuningJob",
            "SearchExpression": {"Filters": [{"Name": "BestTrainingJob.TrainingJobName", "Value": "c-001"}]},
        },
    )[1]
    assert [hit["HyperParameterTuningJob"][NAME] for hit in found["Results"]] == ["c"]


def test_a_search_without_its_secrets_ends_and_says_so(client, monkeypatch):  # noqa: F811
    """Its searcher was killed with the only copy of them; the trials that run are stopped."""
    from herringbone.tuner.own import OwnTuning

    store, resumed = add_tuning(client, "digits", status="InProgress"), []

    def resume(tuning):
        resumed.append(tuning.name)
        if not store.stop_asked:
            raise InputError("the job has secrets that are stored masked: MY_TOKEN")

    monkeypatch.setattr(OwnTuning, "resume", resume)
    client.tunings.look_at_running()
    assert resumed == ["digits", "digits"]
    answer = client.call("DescribeHyperParameterTuningJob", {NAME: "digits"})[1]
    assert answer["HyperParameterTuningJobStatus"] == "Stopping"
    assert "MY_TOKEN" in answer["FailureReason"]


def test_a_search_whose_searcher_dies_again_and_again_fails(client, monkeypatch):  # noqa: F811
    from herringbone.tuner.own import OwnTuning

    store = add_tuning(client, "digits", status="InProgress")
    store.log.write_text("MemoryError\n")
    monkeypatch.setattr(OwnTuning, "resume", lambda _: True)
    for _ in range(4):
        client.tunings.look_at_running()
    answer = client.call("DescribeHyperParameterTuningJob", {NAME: "digits"})[1]
    assert (answer["HyperParameterTuningJobStatus"], "MemoryError" in answer["FailureReason"]) == ("Failed", True)


def test_a_creation_that_was_cut_is_settled(client):  # noqa: F811
    for name, trials in (("begun", 1), ("bare", 0)):
        add_tuning(client, name, status="InProgress", trials=trials)
        client.trainings.records.tunings.change(name, submitted=False)
    client.tunings.recover()
    assert {known.name: known.submitted for known in client.trainings.records.tunings.all()} == {"begun": True}
    assert not client.home.tuning("bare").exists()


@pytest.mark.parametrize("member", ["output_path", "checkpoint_s3_uri"])
def test_no_trial_starts_through_a_link_that_an_earlier_one_made(client, tmp_path, member):  # noqa: F811
    store = add_tuning(client, "digits", status="InProgress")
    buckets = tmp_path / "buckets"
    (buckets / "mine").mkdir(parents=True)
    document = msgspec.structs.replace(store.record(), no_links_below=str(buckets))
    (store.path / "tuning.json").write_bytes(encode_record(document))
    given = {"entry_point": "train.py", "instance_type": "local_process", member: f"{buckets}/mine/out"}
    started = []
    jobs = TrialJobs(
        store, document.definition, "local_process", make_request("Estimator", given), lambda *job: started.append(job)
    )
    (trial,) = store.trials()
    jobs.start(trial, None)
    (buckets / "mine" / "out").symlink_to(tmp_path)
    with pytest.raises(InputError, match="mine/out is a link"):
        jobs.start(trial, None)
    assert len(started) == 1
