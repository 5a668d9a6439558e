"""The page of a search: its data, its addresses, and what people see and do in a real Chromium."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from tests.page.make_jobs import write_events
from tests.page.make_tunings import RANGES, definition_of, make_tuning
from tests.page.test_browser import HOSTILE, NO_SCROLL

from herringbone.records.index import JobRecord
from herringbone.tuner.look import TuningLook
from herringbone.tuner.parameters import CategoricalParameter
from herringbone.tuner.store import TrialRecord
from herringbone.views.page.tunings import tuning_data, tuning_row

TRIALS = "document.querySelectorAll('.trials tbody tr').length"


def look(*trials, **definition):
    return TuningLook(
        definition=definition_of("digits", **definition),
        trials=trials,
        status="InProgress",
        backend="local",
        created=100.0,
    )


def trial(number, objective=None, status="Completed", **members):
    values = {"lr": 0.01, "momentum": 0.9, "layers": 2, "optimizer": "sgd"}
    given = {"job": f"digits-{number + 1:03}", "values": values, "proposed": 110.0} | members
    return TrialRecord(number=number, objective=objective, status=status, **given)


def test_a_row_counts_configurations_and_names_the_best():
    row = tuning_row(
        look(trial(0, 0.5), trial(1, 0.75), trial(2, 0.9, resumes=0), trial(3, status="InProgress")), now=160.0
    )
    assert (row["over"], row["max_jobs"], row["best"], row["best_value"], row["seconds"]) == (2, 24, 3, 0.9, 60.0)
    assert row["counts"] == [("completed", 3), ("running", 1)]
    # So that the page can say why 2 are over and 3 completed.
    assert row["continued"] == 1
    assert row["best_values"] == "lr=0.01 momentum=0.9 layers=2 optimizer=sgd"


def test_trials_have_the_times_of_their_jobs_and_thin_curves():
    curve = tuple(float(at % 7) for at in range(50_000))
    running = trial(1, status="InProgress", job="digits-002")
    jobs = {
        "digits-001": JobRecord(
            name="digits-001", backend="local", plan="{}", created=110.0, started=120.0, ended=150.0, status="Completed"
        ),
        "digits-002": JobRecord(
            name="digits-002", backend="local", plan="{}", created=115.0, started=130.0, secondary_status="Training"
        ),
    }
    data = tuning_data(look(trial(0, 0.5, curve=curve, ended=151.0), running), jobs, {"digits-002": 0.25}, now=160.0)
    over, live = msgspec.json.decode(msgspec.json.encode(data))["trials"]
    assert (over["seconds"], over["ended"], over["so_far"]) == (30.0, 150.0, None)
    assert len(over["curve"]) == len(over["at"]) <= 700
    assert (over["at"][0], over["at"][-1]) == (1, 50_000)
    assert (live["state"], live["over"], live["seconds"], live["so_far"], live["objective"]) == (
        "Training",
        False,
        30.0,
        0.25,
        None,
    )


def test_a_trial_that_waits_in_line_has_no_time():
    pending = {
        "digits-001": JobRecord(
            name="digits-001", backend="local", plan="{}", created=110.0, secondary_status="Pending"
        )
    }
    [waiting] = tuning_data(look(trial(0, status="InProgress")), pending, {}, now=160.0)["trials"]
    assert (waiting["seconds"], waiting["state"]) == (None, "Pending")


def test_ranges_say_their_scale():
    lr, momentum, layers, optimizer = tuning_data(look(), {}, {}, now=160.0)["ranges"]
    assert lr == {"name": "lr", "low": 1e-4, "high": 0.1, "scaling": "Logarithmic"}
    assert (momentum["scaling"], layers["high"], optimizer["values"]) == ("Linear", 6, ["sgd", "adam", "lamb"])


@pytest.fixture(scope="module")
def searches(page):
    """A search that runs, one that is over, and one whose process is gone."""
    now = time.time()
    store = make_tuning(page.home, definition_of("digits"), now, over=17, running=2)
    make_tuning(page.home, definition_of("digits-loss", objective_type="Minimize", max_jobs=4), now - 5000, over=4)
    make_tuning(page.home, definition_of("digits-gone"), now - 900, over=3, running=1)
    with store.locked():
        yield store


def test_the_list_and_each_search_are_json(page, searches):
    tunings = {row["name"]: row for row in json.loads(page.get("/api/jobs")[2])["tunings"]}
    assert (tunings["digits"]["over"], tunings["digits"]["why"]) == (17, "")
    assert "herringbone tune attach digits-gone" in tunings["digits-gone"]["why"]
    jobs = {row["name"]: row for row in json.loads(page.get("/api/jobs")[2])["jobs"]}
    assert jobs["digits-017"]["trial"]["number"] == 17
    data = json.loads(page.get("/api/tunings/digits")[2])
    assert (len(data["trials"]), data["best"], data["trials"][17]["state"]) == (19, 2, "Training")
    assert isinstance(data["trials"][18]["so_far"], float)
    assert json.loads(page.get("/api/jobs/digits-002")[2])["trial"] == jobs["digits-002"]["trial"]
    assert page.get("/tunings/digits")[0] == 200
    for path in ("/api/tunings/nothing", "/api/tunings/nothing/stream", "/api/tunings/..%2fjobs"):
        assert page.get(path)[0] == 404, path
    assert page.get("/api/tunings/digits", cookie="")[0] == 403


@pytest.mark.chromium
def test_the_list_leads_to_a_search(browser, page, searches):
    browser.open(f"{page.address}/", until="document.querySelectorAll('.tunings tbody tr').length >= 3")
    assert "17 of 24" in browser.text(".tunings")
    assert "trial 17 of digits: lr=" in browser.text("main")
    browser.run("document.querySelector('[name=trials]').click()")
    assert "trial 17 of digits: lr=" not in browser.text("main")
    browser.run("document.querySelector('[data-tuning=digits]').click()")
    browser.wait("location.pathname === '/tunings/digits' && document.querySelectorAll('canvas').length === 2")


@pytest.mark.chromium
def test_a_search_shows_objective_values_and_trials(browser, page, searches):
    browser.open(f"{page.address}/tunings/digits", until="document.querySelectorAll('canvas').length === 2")
    text = browser.text()
    for part in ("17 of 24", "15 completed, 2 running", "digits-002", "higher is better", "so far",
                 "momentum 0.99 and nesterov", "0.0001 to 0.1, Logarithmic"):  # fmt: skip
        assert part in text, part
    assert browser.run("document.querySelectorAll('.parallel .trial').length") == 19
    assert browser.run("document.querySelectorAll('.parallel .axis').length") == len(RANGES) + 1
    assert browser.run("document.querySelector('.parallel .best').dataset.trial") == "2"
    label = browser.run("document.querySelector('#objective .plot').getAttribute('aria-label')")
    assert "best so far: last 0.9129" in label
    results = browser.run("[...document.querySelectorAll('.trials tbody tr')].map((row) => row.dataset.trial)")
    assert results[0] == "2"
    browser.run("[...document.querySelectorAll('.sort')].find((button) => button.textContent === 'lr').click()")
    rates = browser.run(
        "[...document.querySelectorAll('.trials tbody td:nth-child(3)')].map((cell) => Number(cell.textContent))"
    )
    assert rates == sorted(rates)
    browser.run("document.querySelector('[name=overTime]').click()")
    browser.wait("document.querySelector('#objective .title').textContent === 'test_accuracy'")
    browser.run("document.querySelector('#trials a.button').click()")
    browser.wait("location.pathname === '/compare' && document.querySelector('canvas')")


@pytest.mark.chromium
def test_dragging_over_an_axis_chooses_trials(browser, page, searches):
    browser.open(f"{page.address}/tunings/digits", until=f"{TRIALS} === 19")
    drag = (
        "((from, to) => { SVGElement.prototype.setPointerCapture = () => {};"
        "const chart = document.querySelector('.parallel'), box = chart.getBoundingClientRect();"
        "const axes = [...chart.querySelectorAll('.axis line')].map((line) => Number(line.getAttribute('x1')));"
        "const clientX = box.left + axes.at(-1) * box.width / 1000;"
        "const at = (type, y) => chart.dispatchEvent(new PointerEvent(type,"
        " { bubbles: true, pointerId: 1, clientX, clientY: box.top + y * box.height / 300 }));"
        "at('pointerdown', from); at('pointermove', to); at('pointerup', to); return true; })"
    )
    browser.run(f"{drag}(30, 110)")
    chosen = browser.run("[...document.querySelectorAll('.trials tbody tr')].map((row) => row.dataset.trial)")
    assert 0 < len(chosen) < 17
    assert chosen[0] == "2"
    assert browser.run("document.querySelectorAll('.parallel .trial:not(.off)').length") == len(chosen)
    assert f"{len(chosen)} of 19 trials" in browser.text("#values")
    browser.run(f"{drag}(60, 60)")
    assert browser.run(TRIALS) == 19


@pytest.mark.chromium
def test_a_search_is_followed(browser, page):
    store = make_tuning(page.home, definition_of("followed", max_jobs=9), time.time(), over=2, running=1)
    with store.locked():
        browser.open(f"{page.address}/tunings/followed", until=f"{TRIALS} === 3")
        event = {
            "kind": "metrics",
            "t": time.time(),
            "name": "test_accuracy",
            "source": "script",
            "step": 9,
            "values": [0.875],
        }
        write_events(page.home.job("followed-003"), "algo-1", [event])
        browser.wait("document.querySelector('.trials').innerText.includes('0.875 so far')")
        end = {
            "kind": "ended",
            "number": 2,
            "status": "Completed",
            "t": time.time(),
            "objective": 0.99,
            "curve": [0.9, 0.99],
        }
        with (store.path / "trials.jsonl").open("a") as file:
            file.write(json.dumps(end) + "\n")
        browser.wait("document.querySelector('.parallel .best')?.dataset.trial === '3'")
        assert "3 of 9" in browser.text()
    browser.wait("document.querySelector('.banner')?.innerText.includes('herringbone tune attach followed')")


@pytest.mark.chromium
def test_texts_of_a_search_are_shown_as_text(browser, page):
    ranges = {HOSTILE: CategoricalParameter([HOSTILE, "b"])}
    definition = definition_of("hostile-search", metric=HOSTILE, ranges=ranges, static={HOSTILE: HOSTILE}, max_jobs=4)
    make_tuning(page.home, definition, time.time(), over=4)
    for path in ("/tunings/hostile-search", "/"):
        browser.open(f"{page.address}{path}", until="document.body.innerText.includes('hostile-search')")
        browser.wait("document.querySelector('.trials tbody tr, .tunings tbody tr')")
        assert browser.run("document.querySelectorAll('img, script:not([src]):not([type])').length") == 0
        assert "owned" not in browser.run("document.title")


@pytest.mark.chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_the_page_downwards_only(browser, page, searches, scheme):
    browser.size(390, 844, mobile=True)
    browser.scheme(scheme)
    for path, until in (("/tunings/digits", f"{TRIALS} === 19"), ("/", "document.querySelector('.tunings tbody tr')")):
        browser.open(f"{page.address}{path}", until=until)
        assert browser.run(NO_SCROLL), path
