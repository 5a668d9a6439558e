"""Destinations: what is accepted, and what is refused before a job starts."""

import sys
from pathlib import Path

import pytest
from tests.trackers.installed import install

from herringbone import Estimator
from herringbone.backends.review.trackers import check_installed
from herringbone.plan.destinations import parse_destination
from herringbone.plan.options.typed import parse_options
from herringbone.plan.request import request_of
from herringbone.trackers.tracker import calls_of
from herringbone_contract.errors import OptionError, TrackerError

BASE = Path("/home/me")


@pytest.mark.parametrize(
    ("text", "place", "project"),
    [
        ("mlflow:http://ml:5000/digits", "http://ml:5000", "digits"),
        ("mlflow:HTTPS://ml/prefix/my%20digits", "https://ml/prefix", "my digits"),
        ("mlflow:http://ml:5000", "http://ml:5000", "Default"),
        ("mlflow:http://ml/prefix/", "http://ml/prefix", "Default"),
        ("mlflow:http://ml/%2FUsers%2Fme", "http://ml", "/Users/me"),
        ("mlflow:http://[::1]:5000/a", "http://[::1]:5000", "a"),
        ("tensorboard:runs", "/home/me/runs", ""),
        ("tensorboard:file:///runs", "/runs", ""),
        ("wandb:digits", "", "digits"),
        ("wandb:team/digits", "team", "digits"),
        ("trackio:digits", "", "digits"),
    ],
)
def test_a_destination_is_parsed_and_written_as_it_was(text, place, project):
    destination = parse_destination(text, base=BASE)
    assert destination == (text.partition(":")[0], place, project)
    # The exporter's process gets the text.
    assert parse_destination(str(destination), base=Path("/elsewhere")) == destination


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlfow:http://ml:5000/a", "'mlfow:http://ml:5000/a' names no tracker, did you mean mlflow?; write mlflow:"),
        ("http://ml:5000", "names no tracker"),
        ("", "names no tracker"),
        ("wandb", "names no tracker, did you mean wandb?"),
        ("wandb:", "wandb: its destination is missing; write for example wandb:project"),
        ("mlflow:ml:5000/digits", "mlflow:'ml:5000/digits' has no scheme; write for example mlflow:http://host"),
        ("mlflow:sqlite:///a.db", "sqlite:// is not served, only the http:// or https:// of a server"),
        ("mlflow:http://ml:none/a", "is no address"),
        ("mlflow:http:///a", "expected a host"),
        ("mlflow:http://ml/a?b=c", "without ? and #"),
        ("mlflow:http://ml/a%0Ab", "has a control character"),
        ("tensorboard:s3://bucket/runs", "is not on this machine; give a folder"),
        ("wandb:a/b/c", "a project's name has letters, digits, '.', '_' and '-'; write for example wandb:project or"),
        ("wandb:/a", "a project's name"),
        ("trackio:a/b", "a project's name"),
        ("trackio:../a", "a project's name"),
        ("wandb:a\x1b[2J", "has a control character"),
    ],
)
def test_a_destination_that_cannot_be_is_refused_with_a_way_out(text, message):
    with pytest.raises(OptionError) as caught:
        parse_options({"track": text})
    assert str(caught.value).startswith("track: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "mlflow:http://me:hunter2@ml:5000/a",
        "mlflow:https://hunter2@ml/a",
        "mlflow:http://ml/a?token=hunter2",
        "tensorboard:postgres://me:hunter2@db/x",
        "wandb:me:hunter2@host",
        "wandb:api_key=hunter2",
    ],
)
def test_a_secret_is_refused_and_not_shown(text):
    """A destination is an argument of a process, a row of the index, and a line of `describe`."""
    with pytest.raises(OptionError) as caught:
        parse_options({"track": [text]})
    if "://" in text:
        assert "a secret" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_one_text_is_a_list_of_one_and_none_is_given_twice():
    assert parse_options({"track": "wandb:a"}).track == ("wandb:a",)
    with pytest.raises(OptionError, match="wandb:a is given twice"):
        parse_options({"track": ["wandb:a", "wandb:a"]})
    with pytest.raises(OptionError, match="the limit is 8"):
        parse_options({"track": [f"wandb:a{number}" for number in range(9)]})


def test_plan_names_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setitem(sys.modules, "trackio", None)
    estimator = Estimator("train.py", instance_type="local_process", track="trackio:digits")
    with pytest.raises(OptionError) as caught:
        estimator.plan()
    assert str(caught.value) == (
        "track: trackio: its package is not installed in this Python; run pip install '.[trackio]' in your clone of "
        "Herringbone, or pip install trackio"
    )


def test_a_folder_with_the_name_of_a_package_is_no_package(tmp_path, monkeypatch):
    """W&B makes a folder `wandb` in the current one."""
    (tmp_path / "no_such_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    destination = parse_destination("wandb:a", base=BASE)._replace(tracker="no_such_tracker")
    with pytest.raises(OptionError, match="is not installed"):
        check_installed([destination])


def test_the_plan_shows_trackers_and_another_job_finds_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    install(monkeypatch, tmp_path, "tensorboard")
    plan = Estimator("train.py", instance_type="local_process", track="tensorboard:runs").plan()
    assert "tracker:           tensorboard:runs" in plan.text()
    assert request_of(plan).options.track == (f"tensorboard:{tmp_path}/runs",)


def test_an_error_that_no_tracker_documents_is_an_error_of_the_tracker():
    """W&B's client raises one that is none of its own: the exporter broke with a traceback."""
    with pytest.raises(TrackerError) as caught, calls_of("W&B", lambda error: False):
        raise RuntimeError("run ID is in use at http://me:hunter2@ml\x1b[2J")
    assert str(caught.value) == "W&B: run ID is in use at http://me:******@ml\\x1b[2J"
    assert not caught.value.transient
