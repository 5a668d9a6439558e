"""One stream of events, and what every view shows of it: all of them take the same facts from one summary."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from herringbone.api.job import attach
from herringbone.backends.registry import backend_of_job
from herringbone.events.summary import summary_of
from herringbone.plan.destinations import Destination
from herringbone.serve.records import ServiceRecord
from herringbone.trackers.export import follow_job
from herringbone.views.notebook.progress import shown
from herringbone.views.page.live import LiveJob
from herringbone.views.page.tunings import tuning_row as page_row
from herringbone.views.top.monitor import JobReader
from herringbone.views.top.rows import table_of
from herringbone.views.top.tunings import tuning_row as top_row
from herringbone.views.tunings.looks import Tunings
from tests.events.exports import MemoryTracker
from tests.page.make_jobs import FAILURE, make_job, write_events
from tests.serve.signing import ADA, BOB
from tests.serve.test_app import client  # noqa: F401 - a fixture
from tests.serve.test_members import REQUEST
from tests.serve.test_tunings import add_tuning

START = 1_700_000_000.0
GIB = 1 << 30
GPU = {"index": 0, "uuid": "GPU-1", "use": 0.5, "memory": 8 * GIB}
# Two hosts of one machine, which share a GPU; rank 1 is the slower one, and reports last.
EVENTS = [
    {"kind": "progress", "t": START + 10, "done": 5, "total": 20, "unit": "step", "eta": 30.0},
    *(
        {"kind": "metrics", "t": START + 11 + rank / 10, "rank": rank, "name": name, "source": "script",
         "step": 4, "by": 1, "values": [value + 1, value + rank]}
        for name, value in (("accuracy", 0.5), ("eval/loss", 4.0), ("lm_loss_total", 12345.678))
        for rank in (0, 1)
    ),
    *(
        {"kind": "sample", "t": START + second, "host": f"algo-{host}", "machine": "m", "cpu": 1.5,
         "memory": held * GIB, "memory_total": 64 * GIB, "gpus": [{**GPU, "memory": held * 2 * GIB}]}
        for second, held in ((11, 6), (12, 4)) for host in (1, 2)
    ),
    {"kind": "steps", "t": START + 12, "host": "algo-1", "rank": 0, "count": 5, "seconds": [0.25, 0.25]},
    {"kind": "straggler", "t": START + 12, "rank": 1, "host": "algo-2", "seconds": 0.5, "median": 0.25},
]  # fmt: skip
OVER = {"status": "Completed", "secondary_status": "Completed", "started": START, "ended": START + 60}
FAILED = {**OVER, "status": "Failed", "secondary_status": "Failed", "failure": FAILURE.to_json()}
# The newest values, of rank 1, which has reported last.
LAST = {"accuracy": 1.5, "eval/loss": 5.0, "lm_loss_total": 12346.678}
MODEL = {"model": "/buckets/mine/a/output/model.tar.gz"}


def put(client, name, **columns):  # noqa: F811
    """Put a job into the home that the service has submitted, and its events, each into the file of its host."""
    folder = make_job(client.home, name, hosts=2, created=START, **{"started": START, **columns})
    for event in EVENTS:
        write_events(folder, event.get("host", "algo-1"), [event])
    request = {**REQUEST, "TrainingJobName": name}
    client.trainings.records.add(
        ServiceRecord(name=name, owner="ada", region="us-east-1", created=0.0, request=request, submitted=True)
    )
    return attach(name)


def described_by_service(client, name):  # noqa: F811
    status, answer = client.call("DescribeTrainingJob", {"TrainingJobName": name})[:2]
    assert status == 200, answer
    return answer


def text_of(html):
    return re.sub(r"<[^>]*>", " ", html)


def check_terminal(record, backend, summary):
    reader = JobReader(record, backend_named=lambda _: backend)
    reader.open_detail()
    row = reader.look()
    reader.close()
    assert (row.metric, row.value, row.fraction, row.alerts) == (summary.metric, summary.value, 0.25, summary.alerts)
    assert (row.memory, row.gpu, row.gpu_memory) == (summary.memory, summary.gpu, summary.gpu_memory)
    table = table_of([row], None)
    cells = dict(zip(table.titles, table.cells[0], strict=True))
    assert (cells["LM_LOSS_TOTAL"], cells["MEMORY"]) == ("12347", "8.0 GiB" if not record.done else "12.0 GiB")
    assert [cell[1] for cell in reader.detail.metrics[1:]] == ["12347", "5", "1.5"]


def check_page(job, record, backend, summary, tmp_path):
    live = LiveJob("a", backend)
    live.look()
    page = live.data()
    live.close()
    assert (page["loss"]["name"], page["loss"]["text"], page["progress"]["text"]) == (
        "lm_loss_total",
        "12347",
        "5 of 20 steps",
    )
    assert {metric["name"]: metric["last"] for metric in page["metrics"]} == {
        "lm_loss_total": "12347", "eval/loss": "5", "accuracy": "1.5"}  # fmt: skip
    assert page["use"] == {name: getattr(summary, name) for name in page["use"]}
    assert (tuple(page["alerts"]), page["model"]) == (summary.alerts, record.model and f"file://{record.model}")
    report = job.report(tmp_path / "report.html").read_text()
    [data] = re.findall(r'id="report-data">(.*?)</script>', report)
    data = json.loads(data)["job"]
    # The report was made later.
    for name in ("loss", "metrics", "use", "alerts", "happenings", "model", "rate"):
        assert data[name] == page[name], name


def check_notebook(job, record, *, late):
    plain = shown(record, job.view(), "", [], now=START + 60)["text/plain"]
    assert f"lm_loss_total {'12347'}" in plain
    assert ("straggler" in plain, "ETA 20 s late" in plain) == (not record.done, late)
    html = text_of(job._repr_html_())
    assert "12347 at step 5" in html
    assert "5 of 20 steps" in html


def check_records(client, herringbone, job, record, backend):  # noqa: F811
    rows = json.loads(herringbone("metrics", "a", "--json")[1])
    assert {one["MetricName"]: one["Last"]["Value"] for one in rows[0]["Metrics"]} == LAST
    assert "12347 (#2, 11.1 s)" in herringbone("metrics", "a")[1]
    tracker = MemoryTracker()
    if record.done:
        follow_job("a", backend, job.describe, Destination("trackio", "", "a"), tracker=lambda *_: tracker)
        sent = {point.name: point.value for point in tracker.points}
        assert {name: sent[f"{name}/rank-1"] for name in LAST} == LAST
        assert tracker.status == record.status

    [listed] = json.loads(herringbone("ls", "--json")[1])
    description, answer = job.describe(), described_by_service(client, "a")
    final = {one["MetricName"]: one["Value"] for one in description["FinalMetricDataList"]}
    assert final == LAST
    assert {one["MetricName"]: one["Value"] for one in answer["FinalMetricDataList"]} == LAST
    for one in (listed, description, answer):
        assert (one["TrainingJobStatus"], one["SecondaryStatus"]) == (record.status, record.secondary_status)
    assert description.get("FailureReason", "") == answer.get("FailureReason", "").removeprefix("AlgorithmError: ")
    # The service names the place of a model that may come, and no model that was not written.
    model = answer["ModelArtifacts"]["S3ModelArtifacts"]
    assert ("ModelArtifacts" in description, bool(model)) == (bool(record.model), not record.done or bool(record.model))


@pytest.mark.parametrize(
    ("columns", "late", "use"),
    [
        ({}, True, {"memory": 8 * GIB, "memory_total": 64 * GIB, "gpu": 0.5, "gpu_memory": 8 * GIB, "cpu": 3.0}),
        ({**OVER, **MODEL}, False, {"memory": 12 * GIB, "memory_total": 64 * GIB, "gpu_memory": 12 * GIB}),
        (OVER, False, {"memory": 12 * GIB, "memory_total": 64 * GIB, "gpu_memory": 12 * GIB}),
        (FAILED, False, {"memory": 12 * GIB, "memory_total": 64 * GIB, "gpu_memory": 12 * GIB}),
    ],
    ids=["running", "model", "no model", "failed"],
)
def test_every_view_shows_the_same(client, herringbone, tmp_path, columns, late, use):  # noqa: F811
    job = put(client, "a", **columns)
    running = not columns
    backend = backend_of_job("a")
    record = backend.describe("a")
    summary = summary_of(job.view(), running=running, now=START + 60)
    assert (summary.metric, summary.value, summary.done_text) == ("lm_loss_total", 12346.678, "5 of 20 steps")
    assert {name: value for name in ("cpu", "memory", "memory_total", "gpu", "gpu_memory")
            if (value := getattr(summary, name)) is not None} == use  # fmt: skip
    assert (summary.late, summary.alerts) == ((20.0, ("straggler",)) if late else (None, ()))
    check_terminal(record, backend, summary)
    check_page(job, record, backend, summary, tmp_path)
    check_notebook(job, record, late=late)
    check_records(client, herringbone, job, record, backend)


def test_the_service_has_final_metrics_without_anybody_having_described_the_job(client):  # noqa: F811
    put(client, "a", **OVER)
    assert [one["Value"] for one in described_by_service(client, "a")["FinalMetricDataList"]] == [1.5, 5.0, 12346.678]


def test_cloudwatch_has_the_values_of_the_callers_jobs(client):  # noqa: F811
    put(client, "a", **OVER)
    asked = {
        "Namespace": "/aws/sagemaker/TrainingJobs", "MetricName": "accuracy", "Period": 60,
        "Dimensions": [{"Name": "TrainingJobName", "Value": "a"}],
        "StartTime": START, "EndTime": START + 60,
        "Statistics": ["Average", "SampleCount", "Minimum", "Maximum", "Sum"],
    }  # fmt: skip

    def call(key=ADA, **changes):
        target = "GraniteServiceVersion20100801.GetMetricStatistics"
        return client.call(target, {**asked, **changes}, service="monitoring", key=key)

    # Of both ranks; the minute of CloudWatch begins at a whole one.
    point = {"Average": 1.25, "SampleCount": 4.0, "Minimum": 0.5, "Maximum": 1.5, "Sum": 5.0, "Unit": "None"}
    assert call() == (200, {"Label": "accuracy", "Datapoints": [{"Timestamp": START - START % 60, **point}]})
    assert call(Period=1, Statistics=["Maximum"])[1]["Datapoints"] == [
        {"Timestamp": START + 11, "Maximum": 1.5, "Unit": "None"}
    ]
    for nothing in (
        {"key": BOB}, {"Namespace": "AWS/EC2"}, {"MetricName": "loss"}, {"Unit": "Seconds"}, {"Dimensions": []},
        {"StartTime": START - 600, "EndTime": START - 300}, {"Dimensions": [{"Name": "Host", "Value": "a/algo-1"}]},
    ):  # fmt: skip
        assert call(**nothing)[1]["Datapoints"] == []
    for wrong, code in (
        ({"Period": 61}, "InvalidParameterValue"), ({"EndTime": START}, "InvalidParameterCombination"),
        ({"Statistics": []}, "ValidationException"), ({"StartTime": 0}, "InvalidParameterCombination"),
        ({"ExtendedStatistics": ["p90"]}, "ValidationException"),
    ):  # fmt: skip
        assert (call(**wrong)[0], call(**wrong)[1]["__type"]) == (400, code)


def test_a_restart_ends_an_alert(client):  # noqa: F811
    job = put(client, "a")
    write_events(client.home.job("a"), None, [{"kind": "restart", "t": START + 20, "attempt": 2, "why": "lost"}])
    assert summary_of(job.view(), running=True, now=START + 30).alerts == ()


def test_jobs_differ_in_the_same_settings_wherever_they_are_compared(client, herringbone):  # noqa: F811
    put(client, "a", **OVER, facts=json.dumps({"Code": {"Commit": "1a2b"}, "Versions": {"torch": "2.12"}}))
    put(client, "b", hyperparameters={"lr": "0.1", "batch_size": "64"}, **OVER,
        facts=json.dumps({"Code": {"Commit": "1a2b", "Dirty": True}, "Versions": {"torch": "2.13"}}))  # fmt: skip
    wanted = {"lr": ["0.003", "0.1"], "code.dirty": ["-", "true"], "version.torch": ["2.12", "2.13"]}
    table = herringbone("metrics", "a", "b")[1].split("\n\n")[0].splitlines()
    assert {line.split()[0]: line.split()[1:] for line in table[1:]} == wanted
    settings = [one["Settings"] for one in json.loads(herringbone("metrics", "a", "b", "--json")[1])]
    assert {name: [one.get(name, "-") for one in settings] for name in wanted} == wanted
    assert settings[0]["options.max_run"] == "86400"


@pytest.mark.parametrize("status", ["InProgress", "Completed"])
def test_every_view_shows_the_same_search(client, herringbone, status):  # noqa: F811
    now = client.now = time.time() + 30.0
    add_tuning(client, "s", trials=2, status=status)
    tunings = Tunings(client.home)
    [look] = tunings.all()
    if status == "Completed":
        look = replace(look, ended=look.created + 60.0)
    summary = look.summary(now=now + 60)
    assert (summary.over, summary.limit, summary.best.job) == (2, 5, "s-001")
    assert (summary.fraction, summary.eta) == ((0.4, 90.0) if status == "InProgress" else (1.0, None))
    row, page = top_row(look, now=now + 60), page_row(look, now=now + 60)
    assert (row.state, row.done, row.total, row.fraction, row.eta) == (status, 2, 5, summary.fraction, summary.eta)
    assert (page["state"], page["over"], page["max_jobs"], page["fraction"], page["eta"]) == (
        *(status, 2, 5, summary.fraction, summary.eta),
    )
    assert (row.value, row.trial[:7], page["best_text"], page["best_job"]) == (1.0, "best: 1", "1", "s-001")
    line = herringbone("tune", "ls")[1].splitlines()[1]
    assert ("2 of 5" in line, " 1  s-001 " in line, status in line) == (True, True, True)
    [listed] = json.loads(herringbone("tune", "ls", "--json")[1])
    described = json.loads(herringbone("tune", "show", "s", "--json")[1])
    answer = client.call("DescribeHyperParameterTuningJob", {"HyperParameterTuningJobName": "s"})[1]
    for one in (listed, described, answer):
        assert one["HyperParameterTuningJobStatus"] == status
        assert one["TrainingJobStatusCounters"]["Completed"] == 2
        assert one["BestTrainingJob"]["TrainingJobName"] == "s-001"
        assert one["BestTrainingJob"]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 1.0
