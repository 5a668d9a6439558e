"""A controller writes its job's states and the metrics of its log into the events, whatever the patterns do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from tests.waiting import wait_until

from herringbone import Estimator, TrainingJob
from herringbone.events import from_log
from herringbone.events.from_log import Finder
from herringbone.events.source import decode_lines
from herringbone.records.job_events import JobEvents
from herringbone.system.helper_process import HelperProcess

MLLOG = ':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "accuracy", "value": 0.5}'
# The definition matches at each attempt; the pattern of another one backtracks for years on one line.
TRAINS = f"""
import os, sys, time
print("loss=0.5")
print({MLLOG!r})
if not os.path.exists("again"):
    open("again", "w")
    sys.exit(3)
print("loss=nan")
print("a" * 60 + "!", flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)
print("loss=0.25", end="")
"""
DEFINITIONS = [{"Name": "loss", "Regex": r"loss=(\S+)"}, {"Name": "slow", "Regex": r"((a+)+)$"}]


def submit(backend, **options) -> TrainingJob:
    plan = Estimator("train.py", instance_type="local_process", **options).plan(job_name="a")
    return TrainingJob.submit(plan, backend)


def test_states_restarts_and_metrics_are_events_while_the_job_runs(script, backend, home, tmp_path) -> None:
    go = tmp_path / "go"
    script(f"GO = {str(go)!r}\n{TRAINS}")
    policies = {"loss=0.5": "restart"}
    job = submit(backend, metric_definitions=DEFINITIONS, max_retry_attempts=1, log_policies=policies)
    wait_until(lambda: sorted(str(metric.value) for metric in job.metrics()) == ["0.5", "0.5", "0.5", "0.5", "nan"])
    assert job.status == "InProgress"
    assert job.progress() is None
    # The metrics come from the events, not from the log.
    (home.job("a").log("algo-1")).rename(home.job("a").path / "log")
    assert len(job.metrics()) == 5
    (home.job("a").path / "log").rename(home.job("a").log("algo-1"))
    go.touch()
    begin = time.monotonic()
    assert job.wait().status == "Completed"
    assert time.monotonic() - begin < 8
    metrics = job.metrics()
    assert [(metric.name, metric.source) for metric in metrics[:2]] == [("loss", "log"), ("accuracy", "mllog")]
    assert (metrics[-1].name, metrics[-1].value, metrics[-1].host, metrics[-1].rank) == ("loss", 0.25, "algo-1", 0)
    view = job.view()
    assert [one.state for one in view.states] == [
        *("Starting", "Training", "Restarting", "Training", "Uploading", "Completed")
    ]
    [restart] = view.restarts
    assert (restart.attempt, restart.machines) == (2, [])
    assert restart.why.startswith("restart by the log of algo-1")
    [note] = job.logs(pattern="metric_definitions")
    assert note.text == (
        "metric_definitions: the regular expression of 'slow' needed too long for one line and was given up"
    )
    # What `describe` stores comes from the same place.
    assert [entry["MetricName"] for entry in job.describe()["FinalMetricDataList"]] == ["loss", "accuracy"]


def test_mllog_needs_no_definition_and_the_end_says_why(script, backend, home) -> None:
    script(f"import sys\nprint({MLLOG!r})\nraise SystemExit(3)")
    job = submit(backend).wait()
    assert [(metric.name, metric.value) for metric in job.metrics()] == [("accuracy", 0.5)]
    events = list(job.events())
    assert [event["kind"] for event in events] == ["state", "state", "metrics", "state"]
    assert events[-1]["why"] == "rank 0 on algo-1: exit code 3"
    assert list(job.events(follow=True)) == events
    # A job of an older release has no events.
    for path in home.job("a").all_events(["algo-1"]):
        path.unlink(missing_ok=True)
    assert [(metric.name, metric.value) for metric in job.metrics()] == [("accuracy", 0.5)]
    assert job.view().state == ""


def test_a_job_without_metrics_starts_no_process(script, backend, home) -> None:
    script("print('hello')")
    assert submit(backend).wait().status == "Completed"
    assert sorted(os.listdir(home.job("a").logs)) == ["algo-1.log", "job.events"]


def test_definitions_without_a_number_are_named_at_the_end(script, backend) -> None:
    script("for _ in range(3): print('share=97%, loss=1,234.5, count=1')\nprint('loss=2')")
    patterns = {"share": r"share=(\S+),", "loss": r"loss=([0-9.,]+)", "count": r"count=(\d+)", "top5": r"top5=(\d+)"}
    definitions = [{"Name": name, "Regex": regex} for name, regex in patterns.items()]
    job = submit(backend, metric_definitions=definitions).wait()
    assert [line.text for line in job.logs(pattern="metric_definitions")] == [
        "metric_definitions: 'share' matched 3 times, 3 of them without a number (first: '97%')",
        "metric_definitions: 'loss' matched 4 times, 3 of them without a number (first: '1,234.5,')",
        "metric_definitions: 'top5' matched nothing in the log of algo-1",
    ]


def test_a_value_that_ends_at_the_comma_of_its_number_is_named() -> None:
    finder = Finder([("n", "n=([0-9.]+)"), ("pair", "at=([0-9]+)")])
    assert finder.find("n=1,034.5 at=1,20 n=1,2345", "algo-1:0") == [
        ("n", 1, "log"),
        ("n", 1, "log"),
        ("pair", 1, "log"),
    ]
    assert finder.notes([]) == ["metric_definitions: 'n' took 1 of '1,034': print the number without commas"]


@pytest.mark.parametrize(
    ("regex", "line", "whole"),
    [
        ("n=([0-9.]+)", "n=2e-05", "2e-05"),
        ("n=([0-9.]+)", "n=9.5E+3, lr", "9.5E+3"),
        ("n=([0-9.]+)", "n=1.e5 s", "1.e5"),
        ("n=([0-9.]+)", "n=2e-05s", "2e-05"),
        (r"n=(-?\d+)", "n=-2.5.", "-2.5"),
        (r"n=(\d\.\d)", "n=0.125e-3", "0.125e-3"),
        ("n=([0-9]+)", "n=1_000", "1_000"),
    ],
)
def test_a_value_that_is_the_beginning_of_a_number_is_named(regex: str, line: str, whole: str) -> None:
    finder = Finder([("n", regex)])
    [(_, value, _)] = finder.find(line, "algo-1:0")
    assert value != float(whole)
    [note] = finder.notes([])
    assert f" of {whole!r}: let the group of its Regex take all of it" in note


@pytest.mark.parametrize(
    "line", ["n=2", "n=2.", "n=2 e-05", "n=2em", "n=12e5f", "n=10.0.0.1", "n=5%", "n=3/10", "n=5s", "n=7,8", "n=2-5"]
)
def test_a_value_that_ends_with_its_number_is_not_cut(line: str) -> None:
    finder = Finder([("n", "n=([0-9]+)"), ("none", ",|n=(x)?")])
    finder.find(line, "algo-1:0")
    assert "took" not in "".join(finder.notes([]))


def test_only_the_first_host_of_several_machines_says_that_nothing_matched() -> None:
    finder = Finder([("loss", r"loss=(\S+)"), ("loss", "cost=(.)"), ("top5", r"top5=(\d)?")])
    finder.find("loss=1 top5=", "algo-2:0")
    assert finder.notes(["algo-2"]) == [
        "metric_definitions: 'top5' matched 1 time, 1 of them without a number (first: None)"
    ]
    assert Finder([("loss", "a(.)")]).notes(["algo-2"]) == []
    assert Finder([("loss", "a(.)"), ("top5", "b(.)")]).notes(["algo-1", "algo-2"]) == [
        "metric_definitions: 'loss', 'top5' matched nothing in the logs of 2 hosts"
    ]


def test_the_line_that_ends_a_bar_has_no_value_of_its_own() -> None:
    def values(*lines: tuple[bool, str]) -> list[float]:
        finder = Finder([("loss", r"loss=(\S+)")])
        return [value for live, text in lines for _, value, _ in finder.find(text, "algo-1:0", live=live)]

    assert values((True, "loss=1"), (True, "loss=2"), (False, "loss=2\r"), (False, "loss=2")) == [1, 2, 2]
    # A line that is not the state shown last, and an equal one later.
    assert values((True, "loss=1"), (False, "loss=2"), (False, "loss=1")) == [1, 2, 1]


def test_states_of_bars_and_lines_of_the_log_come_in_their_order(tmp_path) -> None:
    finder = Finder([("loss", r"loss=(\S+)")])
    log = from_log._Log(str(tmp_path), "algo-1", 0, finder)

    def line(second: int, text: str) -> bytes:
        return b"2026-11-21T11:44:%02d.000000Z [algo-1:0] %b" % (second, text.encode())

    (tmp_path / "algo-1.log").write_bytes(line(1, "loss=1") + b"\n" + line(3, "loss=2") + b"\n")
    # The third state came after the look: lines before it may be unread.
    log.states = [line(2, "\rloss=2"), line(4, "\rloss=3")]
    log.look()
    log.states.append(line(6, "\rloss=5"))
    assert log.read()
    log.take_known()
    with (tmp_path / "algo-1.log").open("ab") as file:
        file.write(line(5, "loss=4") + b"\n" + line(7, "loss=5") + b"\n")
    log.look()
    assert log.read()
    log.finish()
    events = decode_lines((tmp_path / "algo-1.metrics.events").read_bytes())
    assert [value for event in events for value in event["values"]] == [1, 2, 3, 4, 5]


def test_states_of_bars_that_find_no_room_wait_for_nothing() -> None:
    process = HelperProcess("herringbone.no_such_module")
    process.offer(b"nobody is there")
    reader, process._input = os.pipe()
    process._pid = -1
    for size in (4096, 4097):
        process.offer(b"a" * size)
    assert os.read(reader, 9000) == b"a" * 4096
    for _ in range(100):
        process.offer(b"a" * 4096)
    os.close(reader)
    process.offer(b"the process is gone")


def test_notes_that_nobody_reads_leave_no_traceback(tmp_path) -> None:
    # A killed controller reads neither end of the pipe; the file of standard error is its log.
    reader, writer = os.pipe()
    os.close(reader)
    request = {"logs": str(tmp_path), "definitions": [("loss", "loss=(.)")], "hosts": {"algo-1": 0}}
    command = [sys.executable, "-m", "herringbone.events.from_log"]
    with (tmp_path / "controller.log").open("w+") as log:
        ended = subprocess.run(command, input=f"{json.dumps(request)}\n", text=True, stdout=writer, stderr=log)
        log.seek(0)
        assert (ended.returncode, log.read()) == (0, "")
    os.close(writer)


def test_lines_that_quote_a_rank_are_no_values(tmp_path) -> None:
    metrics = from_log.HostMetrics("algo-1", Finder([("loss", r"loss=([0-9.]+)")]))
    stamp = b"2026-11-21T11:44:37.000000Z "
    lines = [b"[algo-1] attempt 2: '[algo-1:0] loss=1'", b"[INFO] loss=2", b"[algo-1:0] loss=3", b"loss=4"]
    assert [metric.value for metric in metrics.take(b"\n".join(stamp + line for line in lines))] == [2, 3, 4]


def test_a_search_that_ends_is_not_given_up() -> None:
    finder = Finder([("loss", r"loss=(\S+)"), ("all", r"=(\d)")])
    assert finder.find("loss=5", "algo-1:0") == [("loss", 5.0, "log"), ("all", 5.0, "log")]
    finder.watch()
    finder.watch()
    assert finder.find("loss=5", "algo-1:0") == [("loss", 5.0, "log"), ("all", 5.0, "log")]
    assert finder.slow == []


def test_values_without_a_time_stamp_have_that_of_the_line_before() -> None:
    metrics = from_log.HostMetrics("algo-1", Finder([("loss", r"loss=(\S+)")]))
    first = metrics.take(b"2026-11-21T11:44:37.000000Z [algo-1:1] loss=1\nloss=2 cut\n\xff loss=3")
    assert [(metric.value, metric.rank) for metric in first] == [(1.0, 1), (2.0, None), (3.0, None)]
    assert len({metric.time for metric in first}) == 1
    [event, *_] = from_log.metric_events(first)
    assert (event["host"], event["rank"], event["values"], event["step"]) == ("algo-1", 1, [1.0], None)


@pytest.mark.parametrize("content", [b"", b'{"kind":"state","t":1.0,"state":"Training","why":""}\n{"kind":"sta'])
def test_a_state_is_written_once_whoever_wrote_it(tmp_path, content: bytes) -> None:
    path = tmp_path / "job.events"
    path.write_bytes(content)
    for _ in range(2):
        JobEvents(path).state("Training", "why\nmore")
    assert path.read_bytes().count(b"Training") == 1
    JobEvents(path).state("Failed", "why\nmore")
    assert [(event["state"], event["why"]) for event in decode_lines(path.read_bytes())][-1] == ("Failed", "why")


def test_events_that_cannot_be_written_are_lost(tmp_path) -> None:
    JobEvents(tmp_path / "missing" / "job.events").state("Training")
