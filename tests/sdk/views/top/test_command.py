"""`herringbone top` without a terminal view."""

import json
import os
import pty
import subprocess
import sys

from tests.sdk.views.top.made import HOSTILE, training


def test_once_and_json(herringbone, make_job, monkeypatch):
    make_job("bert-1", [*training(), {"kind": "metrics", "name": "acc", "values": [float("0.75")]}], ["hello"])
    make_job("digits-1", training(500), [HOSTILE], status="Completed", created=1.0)
    make_job("digits-0", status="Failed", created=0.5)
    code, out, err = herringbone("top", "--once", "-n", "1")
    assert (code, err) == (0, "")
    titles, bert, digits = out.splitlines()
    assert titles.split()[:5] == ["NAME", "STATE", "PROGRESS", "ETA", "LOSS"]
    assert bert.split()[:5] == ["bert-1", "Training", "━╌╌╌╌╌╌╌", "24", "%"]
    assert "\x1b" not in out
    assert digits.startswith("digits-1  Completed")
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, herringbone("top", "--once")[1].splitlines())) <= 40
    monkeypatch.delenv("COLUMNS")
    # A pipe is no place for a live view.
    assert herringbone("top")[1].count("\n") == 4
    bert, digits = json.loads(herringbone("top", "--json", "-n", "1", "--metric", "acc")[1])
    assert {key: bert[key] for key in ("name", "state", "done", "total", "metric", "value", "cpu", "eta")} | {
        "eta": bert["eta"] + 60 > 3600
    } == {
        "name": "bert-1", "state": "Training", "done": 120.0, "total": 500.0, "metric": "acc", "value": 0.75,
        "cpu": 3.25, "eta": True,
    }  # fmt: skip
    assert (digits["metric"], digits["eta"], digits["last_line"]) == ("", None, HOSTILE.rpartition("\r")[2])


WITHOUT_TEXTUAL = """
import sys
sys.modules["textual.app"] = None
from herringbone.cli.__main__ import main
sys.exit(main(["top"]))
"""


def test_without_textual_the_table_is_shown_and_the_extra_named(make_job):
    make_job("digits-1", training())
    ours, theirs = pty.openpty()
    command, variables = [sys.executable, "-c", WITHOUT_TEXTUAL], {**os.environ, "TERM": "xterm"}
    run = subprocess.run(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=variables)
    assert run.returncode == 0
    assert b"digits-1" in os.read(ours, 65_536)
    assert b"run pip install '.[top]' in your clone of Herringbone" in run.stderr
    os.close(ours)
    os.close(theirs)
