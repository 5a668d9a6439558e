"""The events of a SageMaker job: from CloudWatch, and from what the service says of its states; none is a log line."""

from __future__ import annotations

import json
import sys

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.backends.process.backend import ProcessBackend
from herringbone.backends.service_events import states_of
from herringbone.records.home import Home
from herringbone.show.console import Console
from herringbone_contract.events.format import EVENT_MARK, Point, batches, encode
from tests.events.all_sources import SCRIPT, check_all_sources
from tests.sagemaker.service import described, life

MARK = EVENT_MARK.decode()
MLLOG = ':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "accuracy", "value": 0.5}'
ALGORITHM = {"TrainingInputMode": "File", "MetricDefinitions": [{"Name": "loss", "Regex": r"loss=(\S+)"}]}


def sent(event) -> str:
    return f"[algo-1] {MARK}{encode(event).decode().rstrip()}"


def lines() -> list[str]:
    [batch] = batches([Point(2.0, "score", 1.5, 10, 3), Point(3.0, "score", 2.5, 20, 3)])
    return [
        "[algo-1:0] loss=0.5",
        sent(batch),
        sent({"kind": "progress", "t": 3.0, "done": 20, "total": 40, "unit": "step", "eta": 9.0}),
        f"[algo-1] {MARK}" + "{damaged",
        sent({"kind": "bill", "t": 3.0, "text": "$1000", "host": "algo-7"}),
        f"[algo-1:0] {MLLOG}",
        # A rank, or another image, may print such a byte as well: that is no event.
        f"[algo-1:0] {MARK}mine",
        "loss=nan",
    ]


@pytest.fixture
def job(service, backend, boto) -> TrainingJob:
    states = life(("Starting", "Preparing"), ("Training", ""), AlgorithmSpecification=ALGORITHM)
    service.jobs["digits-1"] = [
        described("digits-1", **state) for state in ({"AlgorithmSpecification": ALGORITHM}, *states)
    ]
    service.write("digits-1/algo-1-1", lines())
    backend.find("digits-1", boto)
    return TrainingJob("digits-1", backend)


def test_every_source_is_read_while_the_job_runs_and_after_its_end(job) -> None:
    found = [(metric.name, str(metric.value), metric.rank, metric.step, metric.source) for metric in job.metrics()]
    assert found == [
        ("score", "1.5", 3, 10, "script"),
        ("score", "2.5", 3, 20, "script"),
        ("loss", "0.5", 0, None, "log"),
        ("accuracy", "0.5", 0, None, "mllog"),
        ("loss", "nan", None, None, "log"),
    ]
    progress = job.progress()
    assert progress is not None
    assert (progress.fraction, progress.eta) == (0.5, 9.0)
    job.wait()
    view = job.view()
    assert [(one.state, one.why or "") for one in view.states][-3:] == [
        ("Starting", "Preparing"),
        ("Training", ""),
        ("Completed", ""),
    ]
    assert len(job.metrics()) == len(found)


def test_no_reader_of_the_log_sees_an_event(job, tmp_path, capsys) -> None:
    shown = ["loss=0.5", MLLOG, f"{MARK}mine", "loss=nan"]
    assert [line.text for line in job.logs()] == shown
    job.follow(Console())
    out, _ = capsys.readouterr()
    assert "progress" not in out
    assert "damaged" not in out
    assert [line.text for line in job.logs(follow=True)] == shown
    text = b"".join(path.read_bytes() for path in job.download("logs", tmp_path / "logs").iterdir())
    assert b"progress" not in text
    assert text.count(b"loss=") == 2


def test_follow_reads_events_to_the_end_and_the_bill(job, service) -> None:
    service.jobs["digits-1"][-1] |= {"TrainingTimeInSeconds": 300, "BillableTimeInSeconds": 120}
    kinds = [event["kind"] for event in job.events(follow=True)]
    assert kinds.count("state") == 3
    assert kinds.count("metrics") == 4
    assert kinds[-1] == "bill"


def test_all_sources(service, backend, boto, tmp_path, monkeypatch) -> None:
    """A supervisor's own output, as CloudWatch would have it, shows every source; see `tests.events.all_sources`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    copy = f"set -o pipefail; {sys.executable} -m herringbone_entry | tee {tmp_path}/output"
    here = ProcessBackend(Home(tmp_path / "home"), ("bash", "-c", copy))
    TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(job_name="a"), here).wait()
    states = life(("Training", ""), AlgorithmSpecification=ALGORITHM)
    service.jobs["digits-2"] = [
        described("digits-2", **{"AlgorithmSpecification": ALGORITHM} | state) for state in states
    ]
    service.write("digits-2/algo-1-1", (tmp_path / "output").read_text().split("\n")[:-1])
    backend.find("digits-2", boto)
    check_all_sources(TrainingJob("digits-2", backend).wait())


def test_states_are_read_from_a_stored_description() -> None:
    stored = json.dumps({"SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": 7.0}, {"Status": "x"}]})
    assert states_of(json.loads(stored)) == [{"kind": "state", "t": 7.0, "state": "Starting", "why": ""}]
