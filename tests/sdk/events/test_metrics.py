"""Metrics: found in log files, summed up, and compared between jobs."""

import csv
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest

from herringbone.cli.jobs.describe import as_yaml
from herringbone.events.columns import Metrics
from herringbone.events.from_log import Finder, find_metrics
from herringbone.events.metrics import Run, comparison, csv_lines, final_metrics, metrics_in_files, one_run
from herringbone.events.series import summarize
from herringbone.plan.options.typed import MetricDefinition
from herringbone.records.logs import FileLogs, Metric
from herringbone_contract.errors import InputError

START = datetime(2026, 11, 21, 11, 0, tzinfo=timezone.utc)
MLLOG = ':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "accuracy", "value": 0.5}'
LOSS = MetricDefinition("loss", r"^loss=(\S+)")


def metrics(*values, name="loss", rank=0):
    return [
        Metric(name, value, START + timedelta(seconds=second), "algo-1", rank)
        for second, value in enumerate(values, start=1)
    ]


def run(name, settings=(), **named):
    found = [metric for key, values in named.items() for metric in metrics(*values, name=key)]
    return Run(
        name=name,
        status="Completed",
        started=START,
        settings=dict(settings),
        metrics=summarize(Metrics.of(found).series),
    )


@pytest.mark.parametrize("definitions", [[], [LOSS], [LOSS, MetricDefinition("all", "=([0-9.]+)")]])
@pytest.mark.parametrize("over", [True, False])
def test_only_candidates_are_parsed_and_nothing_is_missed(tmp_path, definitions, over):
    stamp = "2026-11-21T11:44:37.12345{}Z [algo-1:0] {}\n"
    lines = ["hello", "loss=0.5", "x loss=0.25", MLLOG, f"12: {MLLOG}", ":::MLLOG {", "loss=none", "loss=\udcff"]
    text = "".join(stamp.format(number, line) for number, line in enumerate(lines))
    text += "loss=0.75\nno stamp, all text\n" + stamp.format(9, "loss=0.1")[: -1 if over else -2]
    (tmp_path / "algo-1.log").write_text(text, errors="surrogateescape")
    (tmp_path / "algo-2.log").write_text(stamp.format(1, "loss=2").replace("algo-1", "algo-2"))
    paths = [tmp_path / name for name in ("algo-1.log", "algo-2.log", "algo-3.log")]
    with closing(FileLogs(paths)) as source:
        batches = source.rest(None) if over else iter(source.read, [])
        expected = find_metrics([line for batch in batches for line in batch], Finder.of(definitions))
    assert metrics_in_files(paths, Finder.of(definitions), over=over) == expected
    assert len(expected) == {0: 2, 1: 6 if over else 5, 2: 11 if over else 9}[len(definitions)]


def test_a_summary_has_the_last_the_smallest_and_the_largest_value():
    summary = summarize(Metrics.of([*metrics(3, float("nan"), 1, 2), *metrics(1, 5, rank=1)]).series)["loss"]
    assert (summary.count, summary.last.value, summary.last.number) == (6, 2, 4)
    assert (summary.least.value, summary.least.number) == (1, 3)
    assert (summary.most.value, summary.most.number) == (5, 2)
    assert summarize(Metrics().series) == {}
    only = summarize(Metrics.of(metrics(float("nan"), float("nan"))).series)["loss"]
    assert (str(only.least.value), only.least.number, only.last.number) == ("nan", 1, 2)


def test_final_metrics_have_sagemakers_keys():
    (metric,) = final_metrics(Metrics.of(metrics(2, 1)))
    assert metric == {"MetricName": "loss", "Value": 1, "Timestamp": "2026-11-21T11:00:02+00:00"}


def test_names_that_turn_a_line_round_are_escapes():
    (metric,) = final_metrics(Metrics.of(metrics(1, name="a\u202eb")))
    assert metric["MetricName"] == r"a\u202eb"
    assert "\u202e" not in as_yaml({"a": "b\u202ec", "d\u202e": ["e\u202e"]})


def test_one_run():
    assert one_run(run("a", loss=[2, 0.5, 1], accuracy=[0.25])) == [
        ("METRIC", "LAST", "MIN", "MAX", "VALUES"),
        ("loss", "1 (#3, 3.0 s)", "0.5 (#2, 2.0 s)", "2 (#1, 1.0 s)", "3"),
        ("accuracy", *["0.25 (#1, 1.0 s)"] * 3, "1"),
    ]


def test_runs_side_by_side():
    shared = {"epochs": "3"}
    runs = [
        run("a", {**shared, "lr": "0.1", "name": "one"}, loss=[2, 0.5, 1]),
        run("b", {**shared, "lr": "0.2"}, loss=[4, 0.25, 3], seconds=[7]),
    ]
    settings, values = comparison(runs)
    assert settings == [("SETTING", "a", "b"), ("lr", "0.1", "0.2"), ("name", "one", "-")]
    assert values == [
        ("METRIC", "a", "b"),
        ("loss", "1 (#3, 3.0 s)", "3 (#3, 3.0 s)"),
        ("seconds", "-", "7 (#1, 1.0 s)"),
    ]
    _, values = comparison(runs, ("min", "loss"))
    assert values[:2] == [("METRIC", "b", "a"), ("loss (min)", "0.25 (#2, 2.0 s)", "0.5 (#2, 2.0 s)")]
    assert comparison(runs, ("max", "seconds"))[1][0] == ("METRIC", "b", "a")
    assert comparison([runs[0], runs[0]])[0] == []
    with pytest.raises(InputError, match="no run here has a metric of that name; there is: loss, seconds"):
        comparison(runs, ("min", "lost"))


def test_csv_has_a_line_per_value():
    jobs = {"a": Metrics.of(metrics(2, 0.1)), "b": Metrics.of(metrics(1, name='"x",y'))}
    rows = list(csv.DictReader(csv_lines(jobs)))
    assert [(row["job"], row["metric"], row["number"], row["value"]) for row in rows] == [
        ("a", "loss", "1", "2.0"),
        ("a", "loss", "2", "0.1"),
        ("b", '"x",y', "1", "1.0"),
    ]
    assert rows[0]["time"] == "2026-11-21T11:00:01+00:00"
    assert (rows[0]["step"], rows[0]["source"]) == ("", "log")
