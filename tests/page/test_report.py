"""The report is one file of at most 2 MB, whatever the job is like, and no text of the job ends its script."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.page.make_jobs import make_job, write_events, write_log

from herringbone import TrainingJob
from herringbone.views.page.report import MAX_BYTES
from herringbone_contract.errors import InputError


@pytest.fixture
def home(page):
    """The home of all jobs of these tests, so that there is one."""
    return page.home


def data_of(path):
    [text] = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', path.read_text())
    return json.loads(text)


def test_the_largest_job_fits(home, tmp_path):
    folder = make_job(home, "largest", ranks=300, hosts=4)
    frames = [f"{at}{'x' * 480}" for at in range(90)]
    for host in range(4):
        events = [
            {"kind": "metrics", "t": 1e9, "since": 9e8, "name": f"m{at}", "rank": host * 75 + rank, "step": 0, "by": 1,
             "values": [value / 7 for value in range(300)]}
            for rank in range(75) for at in range(2)
        ]  # fmt: skip
        groups = [{"ranks": [rank], "frames": frames} for rank in range(60)]
        events += [{"kind": "stacks", "t": 1e9 + at, "groups": [group]} for at, group in enumerate(groups)]
        events += [{"kind": "hang", "t": 1e9, "why": "w" * 9_000, "rank": at} for at in range(300)]
        events += [
            {"kind": "steps", "t": 1e9 + at, "rank": host * 75 + at % 75, "count": 1, "seconds": [0.1]}
            for at in range(300)
        ]
        write_events(folder, f"algo-{host + 1}", events)
        write_log(folder, f"algo-{host + 1}", [(1e9 + at, 0, f"{'<>' * 1_990}") for at in range(400)])
    path = TrainingJob.attach("largest").report(tmp_path / "report.html")
    assert path.stat().st_size <= MAX_BYTES
    assert data_of(path)["job"]["metrics"][0]["count"] == 300


def test_no_text_ends_the_script(home, tmp_path):
    folder = make_job(home, "script")
    texts = ["</script><script>alert(1)</script>", "<!--", "<script", "\u2028", "]]>"]
    write_log(folder, "algo-1", [(1.0, 0, text) for text in texts])
    path = TrainingJob.attach("script").report(tmp_path / "report.html")
    assert [line["text"] for line in data_of(path)["log"]["lines"]] == [*texts[:3], "\\u2028", "]]>"]
    html = path.read_text()
    assert html.count("</script>") == 3
    assert not re.search(r'(?:src|href)="(?!#)', html)


def test_a_report_appears_whole_or_not_at_all(home, tmp_path):
    make_job(home, "whole")
    with pytest.raises(InputError, match="the report cannot be written to "):
        TrainingJob.attach("whole").report(tmp_path / "nowhere" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_verb_writes_a_file_and_names_it(home, tmp_path, monkeypatch, herringbone):
    make_job(home, "verb")
    monkeypatch.chdir(tmp_path)
    assert herringbone("report", "verb") == (0, "verb.html\n", "")
    code, out, _ = herringbone("report", "verb", "-o", "other.html", "--json")
    assert (code, json.loads(out)["bytes"]) == (0, Path("other.html").stat().st_size)


def test_the_page_without_its_extra_names_it(herringbone, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "herringbone.views.page.serve", raising=False)
    code, _, err = herringbone("page")
    assert code == 2
    assert "run pip install '.[page]' in your clone of Herringbone" in err
