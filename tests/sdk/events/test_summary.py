"""One stream of events, and what each view shows of it."""

import pytest

from herringbone.events.happenings import seen
from herringbone.events.summary import summary_of
from herringbone.events.view import JobView
from herringbone.records.index import JobRecord
from herringbone.views.notebook.progress import shown
from herringbone.views.page.data import row_data
from herringbone.views.top.detail import detail_of, heading
from herringbone.views.top.rows import row_of, table_of

EVENTS = [
    {"kind": "progress", "t": 10.0, "done": 5, "total": 20, "unit": "step", "eta": 30.0},
    *(
        {"kind": "metrics", "t": 11.0, "host": "a", "rank": 0, "name": name, "values": [value], "begin": 9, "end": 11}
        for name, value in (("accuracy", 0.5), ("eval/loss", 4.0), ("lm_loss_total", 3.0))
    ),
    {"kind": "hang", "t": 12.0, "ranks": [1], "seconds": 9.0},
]
RECORD = JobRecord(name="a", backend="local", plan="{}", created=0.0, status="InProgress", secondary_status="Training")


@pytest.mark.parametrize(("now", "eta", "late"), [(12.0, "28 s", None), (60.0, "20 s late", 20.0)])
def test_all_views_show_the_same(now, eta, late):
    view = JobView().take_all(EVENTS)
    summary = summary_of(view, running=True, now=now)
    assert (summary.metric, summary.value, summary.late, summary.alerts) == ("lm_loss_total", 3.0, late, ("hang",))
    row = row_of(RECORD, view, now=now)
    assert (row.metric, row.value, row.eta, row.late) == (summary.metric, summary.value, summary.eta, late)
    assert table_of([row], None).cells[0][4] == eta
    assert f"ETA {eta}" in heading(row)
    assert detail_of(row, view, []).metrics[1][:2] == (summary.metric, "3")
    page = row_data(RECORD, summary, now=now)
    assert (page["loss"]["name"], page["loss"]["value"]) == (summary.metric, summary.value)
    assert (page["progress"]["eta"], page["progress"]["late"], page["alerts"]) == (summary.eta, late, ["hang"])
    notebook = shown(RECORD, view, "", [], now=now)["text/plain"]
    assert eta in notebook
    assert "lm_loss_total 3" in notebook


def test_unused_devices_are_an_alert_until_they_are_used():
    idle = [{"kind": "idle", "t": 20.0, "seconds": 300.0, "what": "none of its GPUs has been used for 300 s"}]
    view = JobView().take_all(idle)
    assert summary_of(view, running=True, now=21.0).alerts == ("idle",)
    assert [one.text for one in seen(view)] == ["none of its GPUs has been used for 300 s"]
    view.take_all([{"kind": "idle", "t": 30.0, "seconds": 0.0, "what": "its devices are used again"}])
    assert summary_of(view, running=True, now=31.0).alerts == ()


def test_a_job_that_is_over_needs_no_help():
    summary = summary_of(JobView().take_all(EVENTS), running=False, now=60.0)
    assert (summary.eta, summary.late, summary.alerts, summary.value) == (None, None, (), 3.0)
