"""Searches and their trials as rows of `herringbone top`."""

from __future__ import annotations

import time

from tests.page.make_tunings import definition_of, make_tuning

from herringbone.views.top.monitor import Monitor
from herringbone.views.top.rows import matches, table_of


def rows_of(**options):
    monitor = Monitor(**options)
    monitor.refresh()
    assert monitor.wait(20.0)
    return monitor, monitor.rows()


def test_a_search_stands_above_its_trials(home):
    now = time.time()
    home.make()
    make_tuning(home, definition_of("old"), now - 5000, over=2)
    store = make_tuning(home, definition_of("digits"), now, over=4, running=2)
    with store.locked():
        monitor, rows = rows_of()
        assert [row.name for row in rows[:3]] == ["digits", "digits-005", "digits-006"]
        assert [row.name for row in rows if row.kind == "tuning"] == ["digits", "old"]
        search, _, trial = rows[:3]
        assert (search.state, search.done, search.total, search.fraction) == ("InProgress", 4.0, 24.0, 4 / 24)
        assert (search.metric, search.running, search.trouble) == ("test_accuracy", True, "")
        assert search.trial.startswith("best: 2, lr=")
        assert (trial.tuning, trial.trial.split("=")[0]) == ("digits", "6: lr")
        assert matches(trial, "DIGITS training")
        table = table_of(rows, 200)
        assert "TRIAL" in table.titles
        assert monitor.reader(search.key).row.name == "digits"
        assert monitor.reader("digits-006").row.name == "digits-006"


def test_the_detail_of_a_search_has_its_trials_the_best_first(home):
    home.make()
    make_tuning(home, definition_of("digits", max_jobs=5), time.time(), over=5)
    monitor, rows = rows_of()
    [search] = [row for row in rows if row.kind == "tuning"]
    assert (search.state, search.fraction, search.running) == ("Completed", 1.0, False)
    detail = monitor.reader(search.key).detail
    assert detail.metrics[0][:3] == ("TRIAL", "STATE", "TEST_ACCURACY")
    assert detail.metrics[1][2].endswith(" *")
    assert detail.metrics[-1][0] == "digits-003"
    assert detail.notes[0].startswith("5 of 5 trials")


def test_a_search_whose_process_is_gone_says_so(home):
    home.make()
    make_tuning(home, definition_of("digits"), time.time(), over=1, running=1)
    _, rows = rows_of()
    assert "herringbone tune attach digits" in rows[0].trouble


def test_json_names_kind_and_search(home):
    home.make()
    make_tuning(home, definition_of("digits", max_jobs=1), time.time(), over=1)
    _, rows = rows_of(num_finished=1)
    shown = {row["name"]: row for row in (row.as_json() for row in rows)}
    assert (shown["digits"]["kind"], shown["digits-001"]["kind"], shown["digits-001"]["tuning"]) == (
        "tuning",
        "job",
        "digits",
    )
    assert "group" not in shown["digits"]
