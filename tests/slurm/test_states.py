"""A table of Slurm's states and controllers' reports, with the row of the index that they give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from herringbone.backends.slurm.review import parse_sinfo
from herringbone.backends.slurm.states import SlurmJob, columns_of, job_id, parse_sacct, parse_squeue
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.standstill import standstill
from herringbone.slots.places import place_texts
from herringbone_contract.errors import SlurmError
from herringbone_contract.failure import Failure, lost_contact
from herringbone_contract.failure_text import parse_failure

ROW = JobRecord(name="digits-1", backend="slurm", plan="{}", created=0.0)
FAILED = {"status": "Failed", "secondary_status": "Failed", "failure": Failure(message="no digit").to_json()}
LOST = {**FAILED, "failure": lost_contact("algo-2").to_json()}
STOPPED = {"status": "Stopped", "secondary_status": "Stopped"}
DONE = {"status": "Completed", "secondary_status": "Completed", "ended": 9.0, "model": "/m"}


def columns(report, job, *, stop_requested=False):
    return columns_of(report, job, ROW, stop_requested=stop_requested, last_words="no such file", now=10.0)


def job(state, restarts=0, reason="None", nodes="n[1-2]"):
    return SlurmJob("7", state, reason, restarts, nodes)


@pytest.mark.parametrize(
    ("report", "slurm", "stop_requested", "expected"),
    [
        ({}, job("PENDING"), False, ("InProgress", "Pending")),
        ({}, job("CONFIGURING"), False, ("InProgress", "Starting")),
        ({}, job("RUNNING"), False, ("InProgress", "Starting")),
        ({"attempt": 0, "secondary_status": "Training"}, job("RUNNING"), False, ("InProgress", "Training")),
        ({"attempt": 0, "secondary_status": "Uploading"}, job("COMPLETING"), False, ("InProgress", "Uploading")),
        ({"attempt": 0, **DONE}, None, False, ("Completed", "Completed")),
        ({"attempt": 0, **FAILED}, None, False, ("Failed", "Failed")),
        # A stop that the user requested.
        ({"attempt": 0, "secondary_status": "Training"}, job("RUNNING"), True, ("Stopping", "Stopping")),
        ({}, job("CANCELLED"), True, ("Stopped", "Stopped")),
        ({"attempt": 0, "secondary_status": "Training"}, job("FAILED"), True, ("Stopped", "Stopped")),
        ({"attempt": 0, **STOPPED}, job("RUNNING"), True, ("Stopped", "Stopped")),
        # A stop without a request came from Slurm, which also decides whether the job goes on.
        ({"attempt": 0, **STOPPED}, job("COMPLETING"), False, ("InProgress", "Stopping")),
        ({"attempt": 0, **STOPPED}, job("PENDING", restarts=1), False, ("InProgress", "Restarting")),
        ({"attempt": 0, **STOPPED}, job("RUNNING", restarts=1), False, ("InProgress", "Restarting")),
        ({"attempt": 0, **STOPPED}, job("CANCELLED"), False, ("Stopped", "Stopped")),
        ({"attempt": 0, **STOPPED}, job("PREEMPTED"), False, ("Stopped", "Interrupted")),
        ({"attempt": 0, **STOPPED}, job("TIMEOUT"), False, ("Stopped", "MaxRuntimeExceeded")),
        ({"attempt": 0, **STOPPED}, job("COMPLETED"), False, ("Stopped", "Stopped")),
        # A lost host may be a node that goes down, and Slurm decides whether the job restarts.
        ({"attempt": 0, **LOST}, job("RUNNING"), False, ("InProgress", "Stopping")),
        ({"attempt": 0, **LOST}, job("PENDING", restarts=1), False, ("InProgress", "Restarting")),
        ({"attempt": 0, **LOST}, job("FAILED"), False, ("Failed", "Failed")),
        ({"attempt": 0, "secondary_status": "Training"}, job("NODE_FAIL"), False, ("Failed", "Failed")),
        ({}, job("FAILED"), False, ("Failed", "Failed")),
        ({}, None, False, ("Failed", "Failed")),
    ],
)
def test_states(report, slurm, stop_requested, expected):
    row = columns(report, slurm, stop_requested=stop_requested)
    assert (row["status"], row["secondary_status"]) == expected


@pytest.mark.parametrize(
    ("slurm", "text"),
    [
        (
            job("FAILED"),
            "Slurm job 7 ended (FAILED) before its controller reported an end; do its nodes see its folder? "
            "no such file",
        ),
        (job("NODE_FAIL"), "one of its nodes went down, and Slurm did not restart the job"),
        (job("OUT_OF_MEMORY"), "out of memory: ask for more (slurm={'cpus': ..., 'memory': ...})"),
        (None, "Slurm no longer knows the job, and its controller reported no end"),
    ],
)
def test_a_job_that_slurm_ended_has_a_reason(slurm, text):
    assert parse_failure(columns({}, slurm)["failure"]).message == text


def test_the_reason_for_waiting_is_described_once():
    description = ROW.description
    for state in (job("PENDING", reason="Resources"), job("PENDING", reason="Resources"), job("RUNNING")):
        row = JobRecord(name="digits-1", backend="slurm", plan="{}", created=0.0, description=description)
        description = columns_of({}, state, row, stop_requested=False, last_words="", now=1.0)["description"]
    assert json.loads(description)["SecondaryStatusTransitions"] == [
        {"Status": "Pending", "StatusMessage": "Slurm job 7 waits (Resources)"},
        {"Status": "Starting", "StatusMessage": "Slurm job 7 on n[1-2]"},
    ]


def test_a_job_that_slurm_holds_names_the_ways_out():
    held = job("PENDING", restarts=1, reason="launch failed requeued held")
    description = json.loads(columns({}, held)["description"])
    assert description["SecondaryStatusTransitions"][-1]["StatusMessage"] == (
        "Slurm holds job 7 after a node could not start it (its Prolog failed?) and will not start it by itself "
        "(launch failed requeued held), attempt 2: `scontrol release 7` lets it run (an administrator, where that is "
        "denied), `herringbone stop digits-1` ends it"
    )


@pytest.mark.parametrize(
    ("touched", "beats", "silent"), [(1_000.0, 10, False), (900.0, 10, True), (900.0, None, False)]
)
def test_a_controller_that_gives_no_sign_of_life_is_named(touched, beats, silent):
    """It stood still, or its node was lost, and every surface said that the job trains."""
    report = {"attempt": 0, "secondary_status": "Training", **({"beats": beats} if beats else {})}
    words = {"stop_requested": False, "last_words": "", "now": 1_001.0, "touched": touched}
    description = json.loads(columns_of(report, job("RUNNING"), ROW, **words)["description"])
    message = description["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert ("its controller gives no sign of life: somebody has stopped it, or its node is lost" in message) == silent
    shown = standstill(replace(ROW, description=json.dumps(description)), Home(Path("/no-such-home")))
    assert (shown is not None and "`scancel 7` ends the job" in shown) == silent
    # Slurm has put the job back into its queue: the controller has ended.
    again = columns_of(report, job("PENDING", restarts=1), ROW, **words)["description"]
    assert "sign of life" not in again


def test_lists_say_what_a_job_in_the_queue_waits_for(tmp_path):
    """`ls`, `top` and the page had a word, such as Pending."""
    home = Home(tmp_path)
    row = columns({}, job("PENDING", reason="Resources"))
    JobIndex(home.index).add(replace(ROW, **row))
    assert place_texts(home, JobIndex(home.index).summaries()) == {"digits-1": "Slurm job 7 waits (Resources)"}


WELCOME = "----------\n  Welcome to Cluster 3\n--> Checking the queue (gpu)...OK\n"


def test_words_of_a_site_are_no_answers_of_slurm():
    """As a wrapper of the command, or the login files of a login node, print them."""
    assert job_id(f"{WELCOME}42;cluster\n") == "42"
    assert [row.id for row in parse_squeue(f"{WELCOME}7|RUNNING|None|0|n1|/a|\n")] == ["7"]
    assert [row.id for row in parse_sacct(f"{WELCOME}7|COMPLETED|n1|/a\n")] == ["7"]
    assert [kind.name for kind in parse_sinfo(f"{WELCOME}gpu|infinite|4|8|4000|gpu:2\n")] == ["gpu"]


@pytest.mark.parametrize("answer", ["", WELCOME, "Submitted batch job 7", "7 jobs"])
def test_an_answer_of_sbatch_without_an_id_is_refused(answer):
    with pytest.raises(SlurmError, match="without a job's id"):
        job_id(answer)


def test_a_folders_name_may_contain_the_separator():
    (parsed,) = parse_squeue("7|RUNNING|None|0|n1|/home/a|b|\n")
    assert parsed.folder == "/home/a|b"
    (parsed,) = parse_sacct("7|CANCELLED by 1000|n1|/home/a|b\n")
    assert (parsed.state, parsed.folder) == ("CANCELLED", "/home/a|b")
