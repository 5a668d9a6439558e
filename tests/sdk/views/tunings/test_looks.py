"""Searches as views read them: again only when a file has changed, and whether anybody still searches."""

from __future__ import annotations

import json
import time

import pytest
from tests.page.make_tunings import definition_of, make_tuning

from herringbone.tuner.store import TuningState
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.errors import JobNotFoundError


@pytest.fixture
def tunings(home):
    home.make()
    return Tunings(home)


def test_searches_come_newest_first_with_their_trials(home, tunings):
    now = time.time()
    make_tuning(home, definition_of("old"), now - 1000, over=3)
    make_tuning(home, definition_of("new"), now, over=5, running=1)
    assert [look.name for look in tunings.all()] == ["new", "old"]
    old = tunings.get("old")
    assert (old.status, old.done, len(old.trials), old.trials[2].status) == ("Completed", True, 3, "Failed")
    look, record = tunings.trials_of_jobs()["new-006"]
    assert (look.name, record.number, record.done) == ("new", 5, False)


def test_files_are_read_again_only_when_they_have_changed(home, tunings):
    store = make_tuning(home, definition_of("digits"), time.time(), over=2)
    [first], [second] = tunings.all(), tunings.all()
    assert first == second
    # A file that was read again gives other trials that are equal.
    assert [one is other for one, other in zip(first.trials, second.trials, strict=True)] == [True, True]
    with (store.path / "trials.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "proposed", "number": 2, "values": {}, "job": "digits-003", "t": 1.0}) + "\n")
    assert len(tunings.get("digits").trials) == 3
    store.ask_to_stop()
    store.set_state(TuningState())
    assert tunings.get("digits").status == "Stopping"


def test_a_search_without_its_process_says_how_to_go_on(home, tunings):
    store = make_tuning(home, definition_of("digits"), time.time(), over=2, running=1)
    assert "herringbone tune attach digits" in tunings.get("digits").reason
    with store.locked() as is_locked:
        assert is_locked
        assert tunings.get("digits").reason is None


def test_what_is_no_search_is_left_out(home, tunings):
    store = make_tuning(home, definition_of("digits"), time.time(), over=2)
    (home.tunings / "empty").mkdir()
    (home.tunings / ".half-made").mkdir()
    assert [look.name for look in tunings.all()] == ["digits"]
    (store.path / "tuning.json").write_text("{}")
    assert tunings.all() == []
    with pytest.raises(JobNotFoundError, match="herringbone tune ls"):
        tunings.get("digits")
