"""Why a running job does not go on, as whoever looks sees it."""

import errno
import os
from dataclasses import replace

import pytest

from herringbone.records import standstill as module
from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from herringbone.records.standstill import note, standstill
from herringbone.slots.places import place_texts

RUNNING = JobRecord(name="a", backend="local_process", plan="{}", created=0.0, secondary_status="Training")
RANK = "algo-1: rank 0 (process 7) is stopped"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_probes", {})
    (tmp_path / "jobs" / "a" / "logs").mkdir(parents=True)
    return Home(tmp_path)


def test_what_the_controller_notes_is_shown_until_it_is_gone(home):
    logs = str(home.job("a").logs)
    note(logs, RANK)
    assert standstill(RUNNING, home) == f"job a stands still: {RANK}"
    assert place_texts(home, [RUNNING]) == {"a": f"stands still: {RANK}"}
    # The log has a line about it, and the job that is over needs none.
    assert standstill(RUNNING, home, log_is_shown=True) is None
    assert standstill(replace(RUNNING, status="Completed"), home) is None
    note(logs, "")
    assert standstill(RUNNING, home) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_home_that_takes_no_writes_is_named_with_the_reason(home, monkeypatch, number):
    def refuse(*_args, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module.os, "open", refuse)
    assert f"{home.path} takes no writes ({os.strerror(number)})" in standstill(RUNNING, home, log_is_shown=True)


def test_a_look_at_the_disk_leaves_nothing_behind(home):
    before = sorted(home.path.rglob("*"))
    assert standstill(RUNNING, home) is None
    assert sorted(home.path.rglob("*")) == before
