"""The page in a real Chromium: what people see and do. Each test also fails when a page reports an error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.page.make_jobs import make_job, make_long, write_events, write_log

from herringbone import TrainingJob
from herringbone.show.cells import shown_number
from herringbone.system.sizes import shown_bytes, shown_memory
from herringbone.system.times import shown_span
from herringbone.views.page.report import MAX_BYTES, MODULES, STATIC

pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("hundred")]

HOSTILE = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
NO_SCROLL = "document.documentElement.scrollWidth <= innerWidth"


def rows(browser):
    return browser.run("document.querySelectorAll('.jobs tbody tr').length")


def test_the_list_is_filtered_and_leads_to_a_comparison(browser):
    browser.wait("document.querySelectorAll('.jobs tbody tr').length >= 100")
    text = browser.text("main")
    assert "ModuleNotFoundError: No module named 'einops'" in text
    assert "63 %" in text
    browser.type("[name=name]", "CATS")
    assert rows(browser) == 5
    browser.type("[name=state]", "failed")
    assert rows(browser) == 1
    browser.type("[name=state]", "all")
    browser.type("[name=name]", "resnet-lr")
    assert rows(browser) == 3
    assert browser.run("document.querySelector('a.button').hasAttribute('href')") is False
    browser.run("document.querySelectorAll('.jobs tbody input').forEach((box) => box.click())")
    browser.run("document.querySelector('a.button').click()")
    browser.wait("location.pathname === '/compare' && document.querySelectorAll('canvas').length === 2")
    assert browser.run("document.querySelectorAll('figure')[0].querySelectorAll('.legend li').length") == 3
    table = browser.text("#jobs table")
    assert all(text in table for text in ("lr", "0.001", "0.03", "loss (last)", "Completed"))
    assert "batch_size" not in table


def test_the_page_writes_figures_as_the_terminal_does(browser, page):
    browser.open(f"{page.address}/")
    values = [
        0,
        0.5,
        -0.00123456,
        1e-5,
        1.5,
        999.96,
        1234.5678,
        9999.6,
        12345.678,
        -123456.7,
        9_999_999,
        1.5e7,
        1e300,
        None,
    ]
    sizes = [0, 999, 1024, 12_345_678, 3 << 20, 24 << 30, 7.5e12, None]
    spans = [0.04, 9.96, 12.34, 60, 200, 7500, 200_000]
    wanted = [[*map(show, list_)] for show, list_ in
              ((shown_number, values), (shown_bytes, sizes), (shown_memory, sizes), (shown_span, spans))]  # fmt: skip
    found = browser.run(
        f"import('/static/dom.js').then((dom) => [{json.dumps(values)}.map((value) => dom.shownNumber(value)),"
        f"{json.dumps(sizes)}.map(dom.shownBytes), {json.dumps(sizes)}.map(dom.shownMemory),"
        f"{json.dumps(spans)}.map(dom.shownSpan)])"
    )
    assert found == wanted


def test_a_job_shows_everything_that_its_events_say(browser, page):
    browser.open(f"{page.address}/jobs/cats-resnet-4gpu", until="document.querySelectorAll('canvas').length >= 15")
    browser.wait("document.querySelector('#files a')")
    text = browser.text()
    for part in (
        "Training", "63.2 %", "6000 of 9500 steps", "eval_accuracy", "steps per second", "GPU use", "memory of ranks",
        "network", "rank 3 on algo-1 takes 0.135 s a step", "algo-1 lost its network", "checkpoints/step-4800, 1.2 GB",
        "torch_distributed", "train.py in /work/cats/src", "lr = 0.003", "hosts/algo-1/ml/checkpoints/step-4800.pt",
    ):  # fmt: skip
        assert part in text, part
    assert re.search(r"The bubble is 2\d\.\d % of the step; 27\.3 % was predicted", text)
    assert browser.run("document.querySelectorAll('#timeline rect').length") == 2 * 64
    label = browser.run("document.querySelector('.plot').getAttribute('aria-label')")
    assert re.match(r"Chart of loss\. rank 0: last 0\.\d+, from 0\.\d+ to 2\.\d+", label)
    browser.type("[name=only]", "rank 3")
    assert browser.run("document.querySelectorAll('#metrics figure').length") == 1
    browser.type("[name=only]", "accuracy")
    assert "learning_rate" not in browser.text("#metrics")


def test_a_log_is_filtered_and_older_lines_come_on_request(browser, page):
    browser.open(f"{page.address}/jobs/cats-resnet-4gpu", until="document.querySelectorAll('.line').length === 300")
    assert browser.run("document.querySelector('.line:last-child .text').textContent").startswith("step=5980 ")
    browser.run("document.querySelector('#log button').click()")
    browser.wait("document.querySelectorAll('.line').length === 600")
    browser.type("#log [name=rank]", "2")
    browser.wait(
        "document.querySelectorAll('.line').length === 300 && !document.querySelector('.place:not([data-rank=\"2\"])')"
    )
    browser.type("#log [name=text]", "STEP=5900 ")
    browser.wait("document.querySelectorAll('.line').length === 1")
    browser.type("#log [name=text]", "nowhere")
    browser.wait("!document.querySelector('.line') && document.querySelector('#log').innerText.includes('no lines')")


def test_a_running_job_is_followed(browser, page):
    folder = make_job(page.home, "live")
    browser.open(f"{page.address}/jobs/live", until="document.body.innerText.includes('no metrics so far')")
    now = time.time()
    write_events(folder, "algo-1", [{"kind": "metrics", "t": now, "name": "loss", "step": 1, "values": [0.5]}])
    write_log(folder, "algo-1", [(now, 0, "a first line")])
    browser.wait(
        "document.querySelectorAll('#metrics canvas').length === 1 && document.body.innerText.includes('a first line')"
    )
    browser.run("document.querySelector('#metrics figure').dataset.kept = 'yes'")
    write_events(folder, "algo-1", [{"kind": "metrics", "t": now + 1, "name": "loss", "step": 2, "values": [0.125]}])
    write_events(
        folder,
        None,
        [{"kind": "hang", "t": now + 2, "since": 60, "ranks": [1], "why": "in all_reduce"}],
    )
    browser.wait("document.querySelector('#metrics .legend').innerText.includes('0.125')")
    browser.wait(
        "document.querySelector('.banner')?.innerText.includes('for 1 min; the odd one is rank 1: in all_reduce')"
    )
    # The chart was updated and not made anew: a zoom stays.
    assert browser.run("document.querySelector('#metrics figure').dataset.kept") == "yes"


def test_texts_of_a_job_are_shown_as_text(browser, page):
    folder = make_job(page.home, "hostile", hyperparameters={HOSTILE: HOSTILE})
    (folder.host("algo-1") / "model" / HOSTILE.replace("/", "_")).write_text("x")
    now = time.time()
    write_log(folder, "algo-1", [(now, 0, HOSTILE), (now, 1, "\x1b[31mred\x1b[0m \x1b]0;owned\x07 \x1b[2J end")])
    groups = [{"ranks": [HOSTILE], "state": HOSTILE, "frames": [HOSTILE]}]
    write_events(folder, "algo-1", [
        {"kind": "metrics", "t": now, "name": HOSTILE, "source": HOSTILE, "values": [1.0, 2.0]},
        {"kind": "stacks", "t": now, "why": HOSTILE, "groups": groups},
        {"kind": "hang", "t": now + 1, "host": HOSTILE, "ranks": [HOSTILE], "why": HOSTILE},
        {"kind": "progress", "t": now, "done": 1, "total": 3, "unit": HOSTILE},
        {"kind": "timeline", "t": now, "step": 1, "spans": [[HOSTILE, 0, 0, 0, 1]]},
        {"kind": "bill", "t": now, "text": HOSTILE},
    ])  # fmt: skip
    for address in (f"{page.address}/jobs/hostile", f"{page.address}/", _report(page, "hostile")):
        browser.open(address, until="document.body.innerText.includes('hostile')")
        browser.wait("location.pathname === '/' || document.querySelectorAll('canvas, .line').length >= 3")
        assert browser.run("document.querySelectorAll('img, script:not([src]):not([type])').length") == (
            "file:" in address
        )
        assert "owned" not in browser.run("document.title")
        if "jobs/hostile" in address:
            lines = browser.run("[...document.querySelectorAll('.line .text')].map((line) => line.textContent)")
            assert lines == [HOSTILE, "red   end"]
            assert browser.text("#metrics .title") == HOSTILE


def test_no_module_makes_html_of_a_text():
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|\.cssText", text
        ), path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_horizontal_scroll(browser, page, scheme):
    browser.size(390, 844, mobile=True)
    browser.scheme(scheme)
    for path, until in (
        ("/", "document.querySelectorAll('.jobs tbody tr').length > 90"),
        ("/jobs/cats-resnet-4gpu", "document.querySelectorAll('canvas').length >= 15"),
        ("/jobs/cats-resnet-einops", "document.querySelector('.banner')"),
        ("/compare?jobs=cats-resnet-lr0.001,cats-resnet-lr0.01", "document.querySelectorAll('canvas').length === 2"),
    ):
        browser.open(f"{page.address}{path}", until=until)
        assert browser.run(NO_SCROLL), path
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", paper)[:3]))
    assert (brightness > 600) == (scheme == "light")
    assert _contrast(browser) >= 4.5


def _contrast(browser):
    """Return the least contrast of texts and papers (WCAG 2.2, 1.4.3)."""
    on_card = [(name, "card") for name in ("ink", "quiet", "accent", "bad")]
    on_paper = [("ink", "paper"), ("quiet", "paper")]
    pairs = [*on_card, *on_paper, *((name, f"{name}-paper") for name in ("good", "bad", "warn", "live"))]
    script = "(name) => { document.body.style.color = `var(--${name})`; return getComputedStyle(document.body).color; }"

    def light(name):
        channels = [
            int(value) / 255 for value in re.findall(r"\d+", browser.run(f"({script})({json.dumps(name)})"))[:3]
        ]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lights = [(light(one), light(other)) for one, other in pairs]
    return min((max(pair) + 0.05) / (min(pair) + 0.05) for pair in lights)


def test_a_million_points_open_at_once(browser, page):
    make_long(page.home, 1_000_000, time.time())
    browser.open(f"{page.address}/jobs/long-100", until="document.querySelectorAll('#metrics canvas').length === 1")
    [metric] = json.loads(page.get("/api/jobs/long-100")[2])["metrics"]
    assert metric["lines"][0]["count"] == 1_000_000
    assert len(metric["lines"][0]["x"]) <= 1_002
    assert Path(_report(page, "long-100").removeprefix("file://")).stat().st_size <= MAX_BYTES


def test_a_report_is_the_page_without_a_server(browser, page):
    browser.open(
        _report(page, "cats-resnet-4gpu"),
        until="document.querySelectorAll('canvas').length >= 15 && document.querySelector('.line')",
    )
    text = browser.text()
    assert "63.2 %" in text
    assert "checkpoints/step-4800" in text
    assert browser.run("document.querySelectorAll('#files a').length") == 0
    browser.type("#log [name=rank]", "2")
    browser.wait("document.querySelector('.line') && !document.querySelector('.place:not([data-rank=\"2\"])')")
    assert browser.run("performance.getEntriesByType('resource').length") == 0


def test_the_report_has_every_module():
    assert {f"{name}.js" for name in MODULES} == {path.name for path in STATIC.glob("*.js")}


def _report(page, name):
    return TrainingJob.attach(name).report(page.home.path / f"{name}.html").as_uri()


def test_a_browser_without_the_token_sees_nothing(chromium, page):
    chromium.run("0")
    chromium.open("about:blank")
    chromium._call("Network.clearBrowserCookies")
    chromium.open(f"{page.address}/jobs/cats-resnet-4gpu", until="document.body.innerText.includes('403')")
    assert "cats" not in chromium.text().replace("cats-resnet-4gpu?", "")
    chromium.problems.clear()


def test_the_pictures_of_the_documentation_can_be_made(tmp_path):
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, root / "scripts" / "screenshots", tmp_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    made = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert made.keys() == {path.name for path in (root / "docs" / "_static").glob("page-*.webp")}
    assert all(10_000 < size < 150_000 for size in made.values()), made


def test_metrics_without_steps_are_not_ticked_as_over_steps(browser, page):
    """The axis was time, and the box said steps."""
    box = "document.querySelector('input[name=bySteps]')"
    for name, step in (("counts-steps", 1), ("counts-none", None)):
        folder = make_job(page.home, name)
        event = {"kind": "metrics", "t": time.time(), "host": "algo-1", "rank": 0, "source": "script", "name": "loss"}
        write_events(
            folder, "algo-1", [event | {"values": [1.0, 0.5], "since": time.time() - 1, "step": step, "by": step}]
        )
        browser.open(f"{page.address}/jobs/{name}", until="document.querySelectorAll('#metrics canvas').length === 1")
        assert browser.run(f"[{box}.checked, {box}.disabled]") == [step is not None, step is None]


def test_a_job_that_is_not_there_is_named(browser, page):
    """The browser says of a refused stream no more than that it failed: the page blamed a server that does not run."""
    stream = "'/api/jobs/nosuch/stream'"
    said = f"import('/static/source.js').then((m) => new Promise((done) => m.listen({stream}, null, done)))"
    assert "no job 'nosuch'" in browser.run(said)
    browser.open(f"{page.address}/jobs/nosuch", until="document.body.innerText.includes(\"no job 'nosuch'\")")
    # The page's own stream may fail later than its text stands there; no problem comes after the page has gone.
    browser.open("about:blank")
    browser.problems.clear()
