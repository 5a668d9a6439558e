"""The server: the token, the Host header, files that stay in the job's folder, and streams that say what changes."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.page.conftest import TOKEN, Page
from tests.page.make_jobs import make_job, write_events, write_log

from herringbone.views.page.summaries import Summaries
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.masking import printable

PATHS = [
    "/",
    "/jobs/a",
    "/compare?jobs=a,b",
    "/static/app.js",
    "/static/style.css",
    "/api/jobs",
    "/api/stream",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_without_the_token_gets_anything(page, path):
    for cookie in ("", f"{page.cookie}=wrong", f"{page.cookie}={TOKEN}x", f"{page.cookie}=\xfc", f"other={TOKEN}"):
        status, headers, text = page.get(path, cookie=cookie)
        assert status == 403
        assert "set-cookie" not in headers
        assert TOKEN not in text
    separator = "&" if "?" in path else "?"
    assert page.get(f"{path}{separator}token=wrong", cookie="")[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(page):
    status, headers, text = page.get(f"/jobs/a?x=1&token={TOKEN}", cookie="")
    assert status == 200
    assert headers["set-cookie"] == f"{page.cookie}={TOKEN}; HttpOnly; Path=/; SameSite=strict"
    assert 'content="0; url=/jobs/a?x=1"' in text
    assert TOKEN not in text
    # No address in the query or the path leads to another machine.
    text = page.get(f"//evil.example/%22%3E%3Cscript%3E?token={TOKEN}", cookie="")[2]
    assert "url=/evil.example/%22%3E%3Cscript%3E" in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", "", "127.0.0.1@evil.example"]
)
def test_another_name_of_this_machine_is_refused(page, host):
    """DNS rebinding: the site's own name leads to 127.0.0.1, and the browser sends that name."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.putrequest("GET", f"/?token={TOKEN}", skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1:1234", "localhost:8080", "[::1]:9"])
def test_a_forwarded_port_is_let_in(page, host):
    assert page.get("/", host=host)[0] == 200


def test_every_answer_has_the_headers_that_guard_it(page):
    for path in ("/", "/static/app.js", "/api/jobs", "/nothing"):
        headers = page.get(path)[1]
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
    assert page.get("/api/jobs", method="POST")[0] == 405


def test_files_are_those_of_the_job(page, tmp_path):
    folder = make_job(page.home, "files", status="Completed", secondary_status="Completed", ended=1.0)
    base = folder.host("algo-1")
    (base / "model" / "weights.bin").write_bytes(b"w" * 1000)
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "config" / "hyperparameters.json").write_text("a secret")
    (tmp_path / "secret").write_text("a secret")
    (base / "model" / "link").symlink_to(tmp_path / "secret")
    (base / "model" / "out").symlink_to(tmp_path)
    (base / "output").symlink_to(tmp_path)
    os.mkfifo(base / "model" / "fifo")
    (base / "model" / "page.html").write_text("<script>alert(1)</script>")
    paths = [file["path"] for file in json.loads(page.get("/api/jobs/files/files")[2])["files"]]
    assert paths == ["hosts/algo-1/ml/model/page.html", "hosts/algo-1/ml/model/weights.bin"]
    status, headers, text = page.get("/api/jobs/files/file?path=hosts/algo-1/ml/model/page.html")
    assert status == 200
    assert text == "<script>alert(1)</script>"
    assert headers["content-disposition"].startswith("attachment")
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-security-policy"].startswith("sandbox")
    model = "hosts/algo-1/ml/model"
    inside = [f"{model}/link", f"{model}/out/secret", f"{model}/fifo", "hosts/algo-1/ml/output/secret", f"{model}/%00"]
    hidden = ["hosts/algo-1/ml/input/config/hyperparameters.json", f"{model}/../input/config/hyperparameters.json"]
    outside = ["../../index.sqlite", f"{model}/../../../../../../index.sqlite", str(tmp_path / "secret"), f"/{model}/x"]
    for path in (*inside, *hidden, *outside, "", ".", "..", model, "logs/../../files/hosts"):
        status, _, text = page.get(f"/api/jobs/files/file?path={path}")
        assert (status, "a secret" in text) == (404, False), path


def test_files_with_any_names_are_listed(page, monkeypatch):
    """Those with control characters, bidirectional marks or bytes that are no UTF-8 were left out unsaid."""
    base = make_job(page.home, "odd").path / "hosts" / "algo-1" / "ml" / "checkpoints"
    base.mkdir()
    names = ["-rf", "a\nb", "\u202egpj.exe", "caf\udce9", "\ufffd", "50%", "?#&"]
    for name in names:
        (base / name).write_text("content")
    files = json.loads(page.get("/api/jobs/odd/files")[2])["files"]
    shown = {file["shown"].rpartition("/")[2]: file["path"] for file in files if "/checkpoints/" in file["shown"]}
    assert list(shown) == [printable(name) for name in sorted(names)]
    assert printable("".join(shown)) == "".join(shown)
    assert [name for name, path in shown.items() if not path] == ["caf\\udce9"]
    for path in filter(None, shown.values()):
        assert page.get(f"/api/jobs/odd/file?path={quote(path)}")[2] == "content"
    monkeypatch.setattr("herringbone.views.page.files._MAX_FILES", 5)
    files = json.loads(page.get("/api/jobs/odd/files")[2])["files"]
    assert {"path": "", "shown": "hosts/algo-1/ml/checkpoints: more files are there", "size": None, "t": None} in files


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e%2fx", "a%00b", "-"])
def test_an_unknown_job_is_404(page, name):
    for part in ("", "/log", "/files", "/file?path=logs/x", "/stream"):
        assert page.get(f"/api/jobs/{name}{part}")[0] == 404


def test_a_job_is_json_without_nan(page):
    folder = make_job(page.home, "nan", status="Completed", secondary_status="Completed", ended=1_800_000_100.0)
    write_events(
        folder, "algo-1", [{"kind": "metrics", "t": 1_800_000_001.0, "name": "loss", "values": ["nan", "inf", 1.0]}]
    )
    job = json.loads(page.get("/api/jobs/nan")[2], parse_constant=pytest.fail)
    assert job["metrics"][0]["lines"][0]["y"] == [None, None, 1.0]


@pytest.mark.usefixtures("hundred")
def test_the_list_has_progress_and_loss(page):
    jobs = json.loads(page.get("/api/jobs")[2])["jobs"]
    assert len(jobs) >= 100
    [job] = [job for job in jobs if job["name"] == "sweep-007"]
    assert job["loss"]["value"] < 0.4
    assert job["progress"]["fraction"] == 1.0


@pytest.mark.parametrize("over", [False, True])
def test_the_list_and_the_page_of_a_long_job_have_the_same_facts(page, over):
    """The facts stand at the beginning of a file, and megabytes of samples behind them."""
    name, start = f"long-{over}", 1_800_000_000.0
    end = {"status": "Completed", "secondary_status": "Completed", "ended": start + 9_000} if over else {}
    folder = make_job(page.home, name, started=start, **end)
    samples = [{"kind": "sample", "t": start + 2 + number, "cpu": 1.0, "memory": 4.0} for number in range(6_000)]
    early = [
        {"kind": "metrics", "t": start + 1, "rank": 0, "name": "loss", "step": 1, "values": [0.25]},
        {"kind": "progress", "t": start + 1, "done": 1, "total": 4, "unit": "epoch"},
        {"kind": "sample", "t": start + 1, "cpu": 1.0, "memory": 9.0},
    ]
    write_events(folder, "algo-1", [*early, *samples])
    assert folder.events("algo-1").stat().st_size > 1 << 18
    job = json.loads(page.get(f"/api/jobs/{name}")[2])
    line = {line["name"]: line for line in json.loads(page.get("/api/jobs")[2])["jobs"]}[name]
    shared = ("loss", "progress", "rate", "alerts", "why", "status", "state")
    assert {key: line[key] for key in shared} == {key: job[key] for key in shared}
    assert line["loss"]["value"] == 0.25
    with closing(Summaries(page.home, Tunings(page.home), most_events=1_000)) as summaries:
        looks = [{line["name"]: line for line in summaries.lines()}[name] for _ in range(20)]
    assert (looks[0]["loss"], looks[0]["progress"]) == (None, None), "no facts of a part of the events"
    assert looks[-1]["loss"] == line["loss"]


def test_a_stream_says_that_a_job_has_changed(page):
    folder = make_job(page.home, "stream")
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request("GET", "/api/jobs/stream/stream", headers={"cookie": f"{page.cookie}={TOKEN}"})
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")

    def message():
        while not (text := answer.readline().decode()).startswith("data:"):
            pass
        return json.loads(text[5:])

    first = message()
    write_events(folder, "algo-1", [{"kind": "metrics", "t": time.time(), "name": "loss", "values": [1.0]}])
    assert message()["version"] > first["version"]
    write_log(folder, "algo-1", [(time.time(), 0, "hello")])
    assert message()["log"]["algo-1"] > 0
    connection.close()


def test_a_log_is_filtered_and_bounded(page):
    folder = make_job(page.home, "log", ranks=2)
    write_log(folder, "algo-1", [(1_800_000_000 + at, at % 2, f"line {at}") for at in range(1000)])
    shown = json.loads(page.get("/api/jobs/log/log?count=5&rank=1&text=LINE")[2])
    assert [line["text"] for line in shown["lines"]] == [f"line {at}" for at in (991, 993, 995, 997, 999)]
    assert len(json.loads(page.get("/api/jobs/log/log?count=99999999")[2])["lines"]) == 1000
    for bad in (
        "before=x",
        "before=[]",
        'before={"algo-1":"x"}',
        "after={}",
        "rank=-1",
        "count=-1",
        "count=x",
        "rank=%C2%B2",
    ):
        assert page.get(f"/api/jobs/log/log?{bad}".replace('"', "%22"))[0] == 200, bad


def test_ctrl_c_ends_the_command_while_somebody_looks(page):
    make_job(page.home, "looked-at")
    command = [sys.executable, "-m", "herringbone", "page", "looked-at", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            address, forward, _ = (server.stdout.readline() for _ in range(3))
            port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/jobs/looked-at\?token=(\S{43})\n", address).groups()
            assert f"ssh -L {port}:127.0.0.1:{port} " in forward
            # Others see the arguments of a process.
            assert token not in Path(f"/proc/{server.pid}/cmdline").read_text()
            own = Page(int(port), page.home, f"herringbone-{hashlib.sha256(token.encode()).hexdigest()[:12]}")
            cookie = f"{own.cookie}={token}"
            assert own.get("/api/jobs/looked-at", cookie=cookie)[0] == 200
            assert own.get("/api/jobs/looked-at")[0] == 403
            stream = http.client.HTTPConnection("127.0.0.1", own.port, timeout=20)
            stream.request("GET", "/api/stream", headers={"cookie": cookie})
            stream.getresponse().readline()
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0
            assert server.stderr.read() == ""
            stream.close()
        finally:
            server.kill()


def test_a_port_that_is_taken_is_an_error(page, herringbone):
    code, _, err = herringbone("page", "--no-open", "--port", str(page.port))
    assert code == 2
    assert f"port {page.port} of 127.0.0.1: Address already in use; name another one with --port" in err


@pytest.mark.parametrize("query", ["rank", "count", "after", "before"])
def test_numbers_with_thousands_of_digits_are_none(page, query):
    make_job(page.home, name := f"digits-of-{query}")
    for text in ("9" * 5000, "%D9%A3" * 20, '{"algo-1":' + "9" * 30 + "}", '{"algo-1":-9}'):
        assert page.get(f"/api/jobs/{name}/log?{query}={text}")[0] == 200
