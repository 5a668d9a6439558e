"""Rows and details of `herringbone top`: literal events in, texts out."""

import math

import pytest
from tests.sdk.views.top.made import HOSTILE

from herringbone.events.summary import chosen_metric
from herringbone.events.view import JobView
from herringbone.records.index import JobRecord
from herringbone.show.cells import fitted, num_columns, shown_eta, sparkline
from herringbone.views.top.detail import MOST_METRICS, MOST_RANKS, detail_of, lines_of
from herringbone.views.top.rows import Row, in_order, row_of, table_of

RUNNING = JobRecord(name="bert-1", backend="ssh", plan="{}", created=1.0, started=2.0, secondary_status="Training")
COMPLETED = JobRecord(
    name="bert-1", backend="ssh", plan="{}", created=1.0, started=2.0, ended=62.0, status="Completed",
    secondary_status="Completed",
)  # fmt: skip
GPU = {"index": 0, "use": 0.5, "memory": 1e9}
EVENTS = [
    {"kind": "progress", "t": 10.0, "rank": None, "done": 120, "total": 480, "unit": "step", "eta": 30.0},
    {"kind": "metrics", "t": 11.0, "host": "algo-1", "rank": None, "name": "loss", "source": "huggingface",
     "since": 9.0, "step": 118, "by": 1, "values": [2.0, 1.0, 0.5]},
    {"kind": "steps", "t": 11.0, "rank": 0, "count": 120, "since": 9.0, "seconds": [0.25, 0.25]},
    {"kind": "sample", "t": 11.0, "host": "algo-1", "cpu": 1.5, "memory": 1e9,
     "gpus": [GPU, {**GPU, "index": 1, "use": 1.0}]},
    {"kind": "sample", "t": 11.0, "host": "algo-2", "cpu": 2.0, "memory": 3e9, "gpus": []},
]  # fmt: skip


def row(events=EVENTS, record=RUNNING, now=12.0, **settings):
    return row_of(record, JobView().take_all(events), now=now, **settings)


def test_a_job_of_the_hugging_face_trainer():
    assert row(last_line="epoch 1") == Row(
        name="bert-1", backend="ssh", state="Training", running=True, created=1.0, seconds=10.0, done=120.0,
        total=480.0, unit="step", fraction=0.25, eta=28.0, metric="loss", value=0.5, steps_per_second=4.0, cpu=3.5,
        memory=4e9, gpu=0.75, gpu_memory=2e9, last_line="epoch 1",
    )  # fmt: skip
    table = table_of([row(last_line="epoch 1")], None)
    assert dict(zip(table.titles, table.cells[0], strict=True)) == {
        "NAME": "bert-1",
        "STATE": "Training",
        "PROGRESS": "━━╌╌╌╌╌╌  25 %",
        "ETA": "28 s",
        "LOSS": "0.5",
        "STEPS/S": "4",
        "GPU": "75 %",
        "CPU": "3.5",
        "MEMORY": "3.7 GiB",
        "GPU MEM": "1.9 GiB",
        "LAST LINE": "epoch 1",
    }


def test_a_job_that_is_over_has_no_eta_and_uses_nothing():
    over = row(record=COMPLETED, now=99.0)
    assert (over.eta, over.steps_per_second, over.cpu, over.gpu) == (None, None, None, None)
    assert (over.seconds, over.fraction, over.value) == (60.0, 0.25, 0.5)


@pytest.mark.parametrize("events", [[], EVENTS[1:], [{**EVENTS[0], "eta": None}], [{**EVENTS[0], "eta": "soon"}]])
def test_an_eta_is_never_invented(events):
    assert row(events).eta is None
    assert "ETA" not in table_of([row(events)], 200).titles


def test_an_eta_that_is_over_says_so():
    assert [shown_eta(one.eta, one.late) for one in (row(now=now) for now in (10.0, 5.0, 39.5, 41.0))] == [
        "30 s",
        "30 s",
        "0 s",
        "1 s late",
    ]


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (["lr", "eval/loss", "loss"], None, "loss"),
        (["lr", "val_Loss"], None, "val_Loss"),
        (["lr", "acc"], None, "lr"),
        (["lr", "acc"], "acc", "acc"),
        (["lr"], "acc", None),
        ([], None, None),
    ],
)
def test_the_metric_of_a_row(names, wanted, chosen):
    assert chosen_metric(names, wanted) == chosen


def test_damaged_samples_count_nothing():
    bad = {"kind": "sample", "t": 1.0, "host": "a", "cpu": "x", "memory": 10**400, "gpus": [None, {"use": "1"}, 3]}
    assert row([bad, {**bad, "host": "b", "gpus": 7, "ranks": [1]}]).cpu is None
    detail = detail_of(row(), JobView().take_all([bad, {**bad, "host": "b", "ranks": {"0": 1, "x": {}}}]), [])
    assert detail.hosts == detail.ranks == ()


def test_jobs_that_run_come_first_then_the_newest():
    rows = [Row(name=n, backend="", state="", running=r, created=c) for n, r, c in
            [("a", False, 9.0), ("b", True, 1.0), ("c", True, 2.0), ("d", False, 8.0)]]  # fmt: skip
    assert [row.name for row in in_order(rows)] == ["c", "b", "a", "d"]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_a_table_fits_its_width_whatever_a_job_says(width):
    rows = [row(last_line=HOSTILE), row([], trouble="日本" * 100)]
    table = table_of(rows, width, metric="[red]日本語日本語日本語日本語")
    assert sum(table.widths) + 2 * len(table.widths) <= width
    for cells in (table.titles, *table.cells):
        assert all(num_columns(cell) <= width for cell, width in zip(cells, table.widths, strict=True))
    assert table.titles[:2] == ("NAME", "STATE") or width == 20
    assert ("LAST LINE" in table.titles) == (width == 200)


def test_hostile_text_becomes_one_line_of_plain_text():
    text = fitted(HOSTILE, 60)
    assert text.startswith(r"[bold red]x[/] \x1b[2J\x1b]0;title\x07 \u202eevil\u2066 a")
    assert len(text) <= 60 + 4
    assert fitted("日本語 שלום\t!", 20) == "日本語 שלום !"
    assert fitted("日本語", 4) == "日…"
    assert fitted("a\nb\r\0", 20) == r"a\nb\r\x00"


def test_sparklines_of_hostile_values():
    nan, inf = math.nan, math.inf
    assert sparkline([nan, inf], 10) == ""
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([1e308, -1e308, 1e308], 10) == "█▁█"
    assert len(sparkline([0.0, 5e-324], 10)) == 2
    assert len(sparkline([float(number) for number in range(1000)], 40)) == 40


def test_details():
    more = [
        {"kind": "sample", "t": 12.0, "host": "algo-10", "cpu": 1.0, "memory": 5.0, "ranks": {"1": {"cpu": 0.5}}},
        {
            "kind": "straggler",
            "t": 13.0,
            "rank": 1,
            "host": "algo-2",
            "seconds": 0.5,
            "median": 0.25,
            "why": "it swaps",
        },
        {"kind": "restart", "t": 12.0, "attempt": 2, "why": "the machine was lost"},
    ]
    detail = detail_of(row(), JobView().take_all(EVENTS + more), ["[algo-1:0] hello"] * 500)
    assert detail.metrics[1:] == (("loss", "0.5", "█▃▁", "120", "huggingface"),)
    assert [host[0] for host in detail.hosts[1:]] == ["algo-1", "algo-2", "algo-10"]
    assert detail.hosts[1] == ("algo-1", "1.5", "953.7 MiB", "50 % 953.7 MiB  100 % 953.7 MiB")
    assert detail.ranks[1:] == (("0", "120", "0.25 s", "-", "-", ""), ("1", "", "", "0.5", "-", ""))
    assert [note.split("  ")[1] for note in detail.notes] == [
        "restart: attempt 2: the machine was lost",
        "straggler: rank 1 on algo-2 takes 0.5 s a step, the others 0.25 s: 2.0 times as long: it swaps",
    ]
    assert len(detail.lines) == 200


def test_details_are_bounded():
    metrics = [{**EVENTS[1], "name": f"m{number}"} for number in range(1000)]
    ranks = [{**EVENTS[2], "rank": rank} for rank in range(1000)]
    detail = detail_of(row(), JobView().take_all(metrics + ranks), [])
    assert len(detail.metrics) <= MOST_METRICS + 1
    assert len(detail.ranks) <= MOST_RANKS + 1
    assert all(num_columns(line) <= 60 for line in lines_of([("A", "B"), (HOSTILE, HOSTILE)], 60))
