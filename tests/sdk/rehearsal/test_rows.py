"""The rows of a rehearsal's result, its table, its page, and whether all is well."""

import json

import pytest

from herringbone.rehearsal.rows import Rehearsal, Row, judged
from herringbone_contract.rehearsal.verdict import Finding, Outcome, Reason, Verdict

FINDING = Finding(Reason.OPTIMIZER, 12, 1, "0.weight", "0.weight is 0.5 instead of 0.25", "restore the optimizer")


def row(fault="rank-killed", equal="yes", **members):
    return Row(backend="local", fault=fault, equal=equal, **members)


def rehearsal(*rows):
    return Rehearsal(name="digits-1", ended=0.0, rows=rows)


def test_the_table_has_a_row_for_each_run():
    made = rehearsal(
        row("undisturbed"),
        row(detected=0.31, lost=2.0, redone=3),
        row("link-cut", "not caused", text="the job has one host"),
    )
    assert made.table[1:] == [
        ("local", "undisturbed", "-", "-", "-", "yes"),
        ("local", "rank-killed", "0.3 s", "2.0 s", "3", "yes"),
        ("local", "link-cut", "-", "-", "-", "not caused: the job has one host"),
    ]


@pytest.mark.parametrize(
    ("rows", "ok", "summary"),
    [
        ([row("undisturbed"), row()], True, "1 of 1 equal"),
        ([row("undisturbed"), row(), row("link-cut", "not caused")], True, "1 of 1 equal"),
        ([row("undisturbed"), row(), row("save-torn", "no")], False, "1 of 2 equal"),
        ([row("undisturbed"), row(equal="unknown")], False, "0 of 1 equal"),
        # Where nothing was caused, nothing is proved.
        ([row("undisturbed"), row("link-cut", "not caused")], False, "0 of 0 equal"),
    ],
)
def test_all_is_well_if_each_fault_that_was_caused_changed_nothing(rows, ok, summary):
    made = rehearsal(*rows)
    assert (made.ok, made.summary, made.to_dict()["ok"]) == (ok, summary, ok)
    assert json.loads(json.dumps(made.to_dict()))["summary"] == summary


def test_a_difference_names_step_tensor_reason_and_remedy():
    other = Finding(Reason.ORDER, 14, 0, "", "the samples are others", "save the sampler")
    found = judged(row(), Verdict(Outcome.DIFFERENT, (FINDING, other), steps=20, redone=3, notes=("rank 1: 2 lost",)))
    assert found.cells[-1] == (
        "no: step 12: 0.weight is 0.5 instead of 0.25 (optimizer state not restored). restore the optimizer"
    )
    assert (found.redone, found.notes) == (3, ("order of data: step 14: the samples are others", "rank 1: 2 lost"))


def test_an_unknown_result_says_why_and_an_equal_one_nothing():
    assert judged(row(), Verdict(Outcome.UNKNOWN, notes=("no records",))).cells[-1] == "unknown: no records"
    assert "no step of an optimizer of torch" in judged(row(), Verdict(Outcome.UNKNOWN)).text
    assert judged(row(), Verdict(Outcome.EQUAL, notes=("a note",))).cells[-1] == "yes"
    assert judged(row("undisturbed"), Verdict(Outcome.EQUAL)).redone is None


def test_the_page_and_the_notebook_escape_all_texts():
    made = rehearsal(row(equal="no", text="<script>", jobs=("a-1",), notes=("<b>",)))
    for text in (made.page([("lr", "<i>")]), made._repr_html_()):
        assert "&lt;script&gt;" in text
        assert "<script" not in text.replace("script-src", "")
        assert "<b>&" not in text
        assert "<i>" not in text
