"""The texts and tables that show a search. Pure: trials in, texts out."""

from __future__ import annotations

import math

from herringbone.tuner.configs import HyperbandStrategyConfig
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import summary_of
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter
from herringbone.tuner.store import TrialRecord
from herringbone.views.tunings.shown import counts, definition_rows, headline, trial_table

RANGES = {"lr": ContinuousParameter(1e-4, 1e-1, scaling_type="Logarithmic"), "optimizer": CategoricalParameter(["sgd"])}


def definition(**settings):
    return TuningDefinition(name="digits", metric="accuracy", ranges=RANGES, **({"max_jobs": 9, "seed": 1} | settings))


def record(number, objective=None, status="Completed", **members):
    job, values = f"digits-{number + 1:03}", {"lr": 10.0 ** -(number + 1), "optimizer": "sgd"}
    ended = None if status == "InProgress" else 110.0 + number
    given = {"job": job, "values": values, "proposed": 100.0, "ended": ended} | members
    return TrialRecord(number=number, status=status, objective=objective, **given)


RECORDS = [
    record(0, 0.5),
    record(1, 0.75),
    record(2, status="Failed", failure="rank 0: ValueError: no\nmore"),
    record(3, math.nan),
    record(4, 0.25, status="Stopped", early_stopped=True),
    record(5, status="InProgress"),
]


def test_a_headline_counts_and_names_the_best():
    text = headline(definition(), RECORDS)
    assert text == "5 of 9 trials, 1 running, 1 stopped, 1 failed, best accuracy 0.75 (digits-002)"
    assert "best accuracy 0.25 (digits-005)" in headline(definition(objective_type="Minimize"), RECORDS)


def test_jobs_that_continue_a_trial_are_not_counted_again():
    continued = [*RECORDS[:2], record(2, 0.9, resource=3, resumes=0)]
    summary = summary_of(definition(), continued)
    assert (summary.over, summary.limit, summary.continued) == (2, 9, 1)
    assert headline(definition(), continued).startswith("2 of 9 trials, 1 continued, best accuracy 0.9")


def test_a_table_marks_the_best_and_puts_what_has_no_result_last():
    table = trial_table(definition(), RECORDS, now=130.0, by_result=True)
    assert table[0] == ("TRIAL", "STATE", "ACCURACY", "lr", "optimizer", "TIME", "WHY")
    assert [row[0][-1] for row in table[1:]] == ["2", "1", "5", "3", "4", "6"]
    assert table[1][1:5] == ("Completed", "0.75 *", "0.01", "sgd")
    assert table[3][1] == "stopped early"
    assert table[4][-1] == "rank 0: ValueError: no"
    assert table[-1][2:6] == ("-", "1e-06", "sgd", "30.0 s")
    in_order = trial_table(definition(), RECORDS[:2], now=130.0)
    assert [row[0] for row in in_order] == ["TRIAL", "digits-001", "digits-002"]
    assert in_order[0][-1] == "TIME"


def test_the_smallest_loss_is_the_best():
    table = trial_table(definition(objective_type="Minimize"), RECORDS[:2], now=130.0, by_result=True)
    assert [row[2] for row in table[1:]] == ["0.5 *", "0.75"]


def test_the_resource_of_hyperband_has_a_column():
    hyperband = definition(
        strategy="Hyperband", static={"epochs": 9}, hyperband=HyperbandStrategyConfig(max_resource=9)
    )
    table = trial_table(hyperband, [record(0, 0.5, resource=3)], now=130.0)
    assert (table[0][5], table[1][5]) == ("EPOCHS", "3")
    assert ("epochs of Hyperband", "1 to 9, as epochs") in definition_rows(hyperband)


def test_settings_show_every_range_and_no_setting_that_is_not_given():
    rows = dict(definition_rows(definition(static={"epochs": 3})))
    assert rows["objective"] == "Maximize accuracy"
    assert rows["range of lr"] == "0.0001 to 0.1, Logarithmic"
    assert rows["range of optimizer"] == "one of sgd"
    assert rows["hyperparameter epochs"] == "3"
    assert rows.keys().isdisjoint({"max_runtime_in_seconds", "warm start from", "epochs of Hyperband"})


def test_states_are_counted_in_one_order():
    assert counts(summary_of(definition(), RECORDS)) == [
        ("completed", 3),
        ("running", 1),
        ("stopped", 1),
        ("failed", 1),
    ]
