"""What notebooks show, from literal events: escaped, bounded, on light and on dark pages."""

import math
import re
from contextlib import closing
from xml.dom import minidom

import pytest
from tests.sdk.views.top.test_rows import EVENTS, RUNNING

from herringbone.events.columns import Metrics
from herringbone.events.tables import metrics_html
from herringbone.events.view import JobView
from herringbone.records.index import JobRecord
from herringbone.show.charts import chart, progress_bar
from herringbone.show.console import Console
from herringbone.system.polling import Pace
from herringbone.views.notebook.choice import console_of
from herringbone.views.notebook.progress import NotebookConsole, job_html, shown
from herringbone_contract.errors import AwsError

EVIL = "<script>alert(1)</script>\x1b[2J&\"'"
DESCRIPTION = {"TrainingJobName": "bert-1", "TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}


def is_whole(html):
    """Report whether every tag is closed; all of it is our own, so the parser is safe."""
    return bool(minidom.parseString(f"<a>{html.replace('&nbsp;', ' ')}</a>"))  # noqa: S318


def view_of(*events):
    return JobView().take_all(events)


def test_a_job_shows_its_progress_and_the_course_of_its_metrics():
    html = job_html(DESCRIPTION, view_of(*EVENTS, {**EVENTS[1], "name": "accuracy"}))
    assert "width:25%" in html
    assert "120 of 480 steps" in html
    assert html.index(">loss<") < html.index(">accuracy<")
    assert "0.5 at step 120 &nbsp; min 0.5, max 2, 3 values" in html
    assert is_whole(html)
    # Where a service has the last values only.
    final = {**DESCRIPTION, "FinalMetricDataList": [{"MetricName": "loss", "Value": 0.25}]}
    assert re.search(r">loss</th><td[^>]*>0.25<", job_html(final, view_of()))


def test_metrics_show_themselves():
    view = view_of(*EVENTS)
    assert "<title>loss: 3 values, the last is 0.5</title>" in Metrics(view.series.values())._repr_html_()
    assert "no metrics" in metrics_html([])
    many = [{**EVENTS[1], "name": f"m{number}"} for number in range(200)]
    assert metrics_html(view_of(*many).series.values()).count("<tr>") == 20


@pytest.mark.parametrize(
    "made",
    [
        lambda: job_html({**DESCRIPTION, "FailureReason": EVIL, "HyperParameters": {EVIL: EVIL}}),
        lambda: metrics_html(view_of({**EVENTS[1], "name": EVIL}).series.values()),
        lambda: job_html(DESCRIPTION, view_of({**EVENTS[0], "unit": EVIL})),
        lambda: chart(EVIL, [1.0, 2.0]),
        lambda: shown(RUNNING, view_of({**EVENTS[0], "unit": EVIL}), EVIL, [EVIL], now=0.0)["text/html"],
        lambda: shown(RUNNING, view_of({**EVENTS[1], "name": EVIL}), EVIL, [EVIL], now=0.0)["text/html"],
    ],
)  # fmt: skip
def test_texts_of_jobs_stay_texts(made):
    html = made()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html
    assert is_whole(html)


def test_charts():
    nan, inf = math.nan, math.inf
    assert chart("a", []) == chart("a", [1.0]) == chart("a", [nan, 1.0, inf]) == ""
    # A value that is not finite is a gap.
    assert re.findall("[ML]", re.search('d="(.*?)"', chart("a", [1.0, 2.0, nan, 3.0, 4.0]))[1]) == ["M", "L", "M", "L"]
    assert "24.0" in chart("a", [7.0, 7.0])
    assert chart("a", [1e308, -1e308]).count("nan") == 0
    assert len(chart("a", [float(number) for number in range(100_000)])) < 5000
    assert 'd="M2.0,' in chart("a", [1.0, 2.0, 3.0], [10, 20, 40])
    assert "width:100%" in progress_bar(7.0)
    # The page's own text colour, and a blue with enough contrast on white and on black.
    assert "#" not in progress_bar(0.5).replace("#3d85e0", "")


def test_the_line_of_a_running_job():
    text = shown(RUNNING, view_of(*EVENTS), "epoch 1", ["asked to stop"], now=12.0)["text/plain"]
    assert text.splitlines() == [
        "bert-1: Training  ━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  10 s  120 of 480 steps  ETA 28 s  loss 0.5  4 steps/s",
        "epoch 1",
        "asked to stop",
    ]
    assert shown(RUNNING, view_of(), "", [], now=12.0)["text/plain"] == "bert-1: Training  10 s"


class Broken:
    pace = Pace(0.01, 0.1, 1.05)

    def events(self, name):
        raise AwsError("no such region", code="x")


def test_one_display_is_replaced_and_a_failing_source_does_not_end_the_wait():
    calls = []
    console = NotebookConsole("bert-1", Broken(), lambda data, is_first: calls.append((data["text/plain"], is_first)))
    with closing(console):
        console.look(RUNNING)
        console.show([])
        console.show([])
        console.note("the service answers again", Console())
        console.look(JobRecord(name="bert-1", backend="ssh", plan="{}", created=1.0, status="Completed"))
    console.say("job bert-1: Completed")
    assert [is_first for _, is_first in calls] == [True, False, False, False]
    assert calls[-1][0].splitlines() == ["bert-1: Completed", "the service answers again", "job bert-1: Completed"]


def test_outside_of_a_notebook_the_log_is_shown(monkeypatch):
    assert type(console_of("a", Broken(), True)) is Console

    class IPython:
        @staticmethod
        def get_ipython():
            return object()  # IPython in a terminal has no kernel.

    monkeypatch.setitem(__import__("sys").modules, "IPython", IPython)
    assert type(console_of("a", Broken(), True)) is Console
