"""States in SageMaker's words, from pods as the API server describes them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.kubernetes.ledger import Ledger
from herringbone.backends.kubernetes.pods import TELL
from herringbone.backends.kubernetes.states import columns_of, delay_of, host_states
from herringbone_contract.failure import Failure, Frame
from herringbone_contract.failure_text import parse_failure

HOSTS = ("algo-1", "algo-2")
NOW = 1_000.0
LABELS = {"dev.herringbone/part": "host", "dev.herringbone/attempt": "1"}


def pod(
    host: str, phase: str = "Running", node: str = "n1", created: str = "2026-11-30T17:00:00Z", **status: Any
) -> dict:
    return {
        "metadata": {
            "name": f"hb-digits-a1-{host}-x7f2k",
            "labels": {**LABELS, "dev.herringbone/host": host},
            "creationTimestamp": created,
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, **status},
    }


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "host", "state": state}]}


def running(host: str) -> dict[str, Any]:
    return pod(host, startTime="1970-01-01T00:10:00Z", **container(running={"startedAt": "1970-01-01T00:10:01Z"}))


def ended(host: str, code: int, *, at: str = "1970-01-01T00:15:00Z", message: str = "", reason: str = "Error") -> dict:
    end = {"exitCode": code, "finishedAt": at, "reason": reason, **({"message": message} if message else {})}
    return pod(host, "Failed" if code else "Succeeded", startTime="1970-01-01T00:10:00Z", **container(terminated=end))


def waiting(host: str, message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(host, "Pending", node="", conditions=[condition])


def preparing(host: str, reason: str = "ContainerCreating", message: str = "") -> dict[str, Any]:
    return pod(host, "Pending", **container(waiting={"reason": reason, "message": message}))


def seen(*pods: dict[str, Any], stopped: bool = False, description: str | None = None) -> dict[str, Any]:
    return columns_of(host_states(pods, HOSTS, Ledger(), NOW), HOSTS, stopped=stopped, description=description, now=NOW)


def last(columns: dict[str, Any]) -> str:
    return json.loads(columns["description"])["SecondaryStatusTransitions"][-1]["StatusMessage"]


GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("pods", "secondary", "message"),
    [
        ([], "Pending", "0 of 2 pods run"),
        ([running("algo-1")], "Pending", "1 of 2 pods run, on n1"),
        ([running("algo-1"), waiting("algo-2", GPU)], "Pending", f"algo-2: {GPU}"),
        ([waiting("algo-1", GPU), waiting("algo-2", GPU)], "Pending", f"algo-1, algo-2: {GPU}"),
        ([preparing("algo-1"), running("algo-2")], "Starting", "1 of 2 pods run, on n1"),
        ([running("algo-1"), running("algo-2")], "Training", "2 of 2 pods run, on n1"),
        ([ended("algo-1", 0), running("algo-2")], "Training", "1 of 2 pods run, on n1"),
        # The others learn of a failure by themselves, and record it.
        ([ended("algo-1", 1), running("algo-2")], "Training", "1 of 2 pods run, on n1"),
    ],
)
def test_a_job_that_is_not_over(pods, secondary, message):
    columns = seen(*pods)
    assert (columns["status"], columns["secondary_status"], last(columns)) == ("InProgress", secondary, message)
    assert "Standstill" not in columns["description"]


def test_the_errors_of_an_image_are_named_at_once():
    words = 'rpc error: failed to resolve reference "registry.test/a:1": not found'
    columns = seen(running("algo-1"), preparing("algo-2", "ErrImagePull", words))
    assert columns["secondary_status"] == "Pending"
    description = json.loads(columns["description"])
    assert description["Standstill"] == f"algo-2: ErrImagePull: {words}; check image_uri and image_pull_secrets"


def test_all_that_ended_well_completes_at_the_last_end():
    columns = seen(ended("algo-1", 0), ended("algo-2", 0, at="1970-01-01T00:16:00Z"))
    assert columns == {
        "started": 600.0,
        "status": "Completed",
        "secondary_status": "Completed",
        "ended": 960.0,
        "failure": None,
    }


def test_the_failure_is_that_of_the_rank_and_not_of_the_host_that_lost_it():
    record = Failure(host="algo-2", rank=1, exit_code=1, exception="ValueError", message="bad").to_json()
    pods = [ended("algo-1", 1, message=record), ended("algo-2", 1, message=record, at="1970-01-01T00:15:02Z")]
    columns = seen(*pods)
    assert columns["status"] == "Failed"
    assert json.loads(columns["failure"])["exception"] == "ValueError"


def test_a_failed_host_ends_a_job_whose_other_pod_never_ran():
    columns = seen(ended("algo-1", 1), waiting("algo-2", GPU))
    assert (columns["status"], json.loads(columns["failure"])["host"]) == ("Failed", "algo-1")


@pytest.mark.parametrize(
    ("pod_of_first", "words"),
    [
        (ended("algo-1", 137, reason="OOMKilled"), "out of memory: ask for more"),
        (
            pod("algo-1", "Failed", reason="Evicted", message="The node was low on resource: memory."),
            "Evicted: The node was low on resource: memory.",
        ),
        (pod("algo-1", "Failed", reason="NodeShutdown", message="Node is shutting down"), "NodeShutdown: Node is"),
    ],
)
def test_the_platforms_reason_is_in_the_failure(pod_of_first, words):
    failure = json.loads(seen(pod_of_first, ended("algo-2", 0))["failure"])
    assert failure["host"] == "algo-1"
    assert failure["message"].startswith(words)


def test_a_claim_that_cannot_be_written_is_named():
    words = "mkdir: cannot create directory '/herringbone/claims/claim-0/jobs': Permission denied"
    failure = json.loads(seen(ended("algo-1", 1, message=f"{words}\n"), ended("algo-2", 0))["failure"])
    assert (failure["host"], failure["message"]) == ("algo-1", words)


def test_an_init_container_that_failed_is_the_failure():
    maker = {
        "name": "added-by-the-cluster",
        "state": {"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:15:00Z"}},
    }
    first = pod("algo-1", "Failed", initContainerStatuses=[maker], **container(waiting={"reason": "PodInitializing"}))
    assert json.loads(seen(first, waiting("algo-2", GPU))["failure"])["exit_code"] == 1


HUNG = Failure(
    host="algo-1",
    rank=0,
    exit_code=143,
    message=f"hang: {'é' * 600}",
    frames=tuple(Frame("train.py", n, "f", "x" * 200) for n in range(9)),
    log_tail=tuple(f"{n} {'y' * 300}" for n in range(20)),
    fault="hang",
)


@pytest.mark.parametrize("failure", [HUNG, HUNG._replace(message="a" * 9_000), HUNG._replace(log_tail=(), frames=())])
def test_a_long_failure_keeps_its_kind_and_its_newest_lines(tmp_path, failure):
    Path(tmp_path, "failure.json").write_text(failure.to_json())
    places = {"/opt/ml/output/failure.json": tmp_path / "failure.json", "/dev/termination-log": tmp_path / "message"}
    program = TELL
    for name, path in places.items():
        program = program.replace(name, str(path))
    subprocess.run(["/bin/sh", "-ec", program], check=True)
    message = Path(tmp_path, "message").read_text()
    told = parse_failure(message)
    assert len(message) <= 4096
    assert (told.fault, told.exit_code, told.rank) == ("hang", 143, 0)
    assert failure.message.startswith(told.message[:600])
    assert told.frames == failure.frames[len(failure.frames) - len(told.frames) :]
    # A watcher has stopped the job: of a record that was cut, nothing but the signal was known.
    columns = seen(ended("algo-1", 143, message=message), ended("algo-2", 143, message=message))
    assert (columns["status"], columns["secondary_status"]) == ("Stopped", "StoppedByPolicy")


def test_no_record_leaves_the_exit_code_alone(tmp_path):
    program = TELL.replace("/opt/ml/output/failure.json", str(tmp_path / "none")).replace("/dev/", f"{tmp_path}/")
    assert subprocess.run(["/bin/sh", "-ec", f"{program}; exit 7"], check=False, capture_output=True).returncode == 7


def test_max_run_stops_the_job():
    pods = [ended("algo-1", 124), ended("algo-2", 143, at="1970-01-01T00:15:01Z")]
    columns = seen(*pods)
    assert (columns["status"], columns["secondary_status"]) == ("Stopped", "MaxRuntimeExceeded")


@pytest.mark.parametrize("pods", [[], [ended("algo-1", 143), ended("algo-2", 143)], [waiting("algo-1", GPU)]])
def test_a_stop(pods):
    columns = seen(*pods, stopped=True)
    assert (columns["status"], columns["failure"]) == ("Stopped", None)


def test_a_stop_waits_for_pods_that_run():
    columns = seen(ended("algo-1", 143), running("algo-2"), stopped=True)
    assert (columns["status"], columns["secondary_status"]) == ("Stopping", "Stopping")


def test_the_newer_of_two_pods_of_a_host_counts():
    old = pod("algo-1", "Failed", reason="NodeLost", message="gone")
    new = {**running("algo-1"), "metadata": {**old["metadata"], "creationTimestamp": "2026-11-30T17:05:00Z"}}
    assert seen(new, old, running("algo-2"))["secondary_status"] == "Training"


def test_an_equal_state_is_noted_once():
    first = seen(running("algo-1"), running("algo-2"))
    again = seen(running("algo-1"), running("algo-2"), description=first["description"])
    assert again["description"] == first["description"]
    later = seen(ended("algo-1", 0), running("algo-2"), description=first["description"])
    assert len(json.loads(later["description"])["SecondaryStatusTransitions"]) == 2


def told(
    reason: str, message: str, at: int, *, count: int = 1, kind: str = "Warning", pod: str = "p"
) -> dict[str, Any]:
    stamp = f"2026-11-30T17:00:{at:02}Z"
    about = {"involvedObject": {"name": pod}, "type": kind, "lastTimestamp": stamp, "count": count}
    return {**about, "reason": reason, "message": message}


SET_UP = told("FailedMount", "MountVolume.SetUp failed: secret not found", 8, count=7)
PULL = told("Pulling", 'Pulling image "a"', 20, kind="Normal")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([SET_UP], "FailedMount: MountVolume.SetUp failed: secret not found"),
        # What is repeated stays, when the kubelet sums up now and then in other words each time.
        (
            [SET_UP, told("FailedMount", "timed out: volumes=[a b]", 9)],
            "FailedMount: MountVolume.SetUp failed: secret not found",
        ),
        ([SET_UP, PULL], 'Pulling: Pulling image "a"'),
        ([SET_UP, PULL, told("Pulled", "in 3 s", 21, kind="Normal")], ""),
        ([told("FailedMount", "of another", 1, pod="q")], ""),
        # As events of a newer kind.
        (
            [{**SET_UP, "lastTimestamp": None, "eventTime": "2026-11-30T17:00:08.5Z"}],
            "FailedMount: MountVolume.SetUp failed: secret not found",
        ),
        ([], ""),
    ],
)
def test_a_pod_that_only_starts_has_the_clusters_last_words(events: list[dict[str, Any]], words: str) -> None:
    assert delay_of(events, "p") == words
