"""The runner: parts that hang, fail, are skipped or are interrupted, with real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

HERE = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu"
# Runs parts of the test's own in place of those of the benchmark.
PROGRAM = """
import argparse, os, sys, time
from pathlib import Path
import run
from parts import Part
from report import Report

folder, minutes, names = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
parts = {
    "good": Part("good", 5, str(folder / "good.py"), tiny=("--device", "cpu")),
    "bad": Part("bad", 5, str(folder / "bad.py")),
    "slow": Part("slow", 1, str(folder / "slow.py")),
    "lacking": Part("lacking", 5, str(folder / "good.py"), needs=("no_such_module",)),
}
import signal
signal.signal(signal.SIGTERM, signal.default_int_handler)
options = argparse.Namespace(output=folder, dry=True)
runner = run.Runner(options, dict(os.environ), Report({"devices": ["cpu"]}, True), time.monotonic() + 60 * minutes)
try:
    runner.run([parts[name] for name in names])
except KeyboardInterrupt:
    sys.exit(130)
"""
GOOD = "import json, sys\nprint('hello')\nprint(json.dumps({'words': sys.argv[1:]}))\n"
BAD = "import sys\nprint('about to fail')\nsys.exit('it failed')\n"
SLOW = (
    "import subprocess, sys, time, pathlib\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "pathlib.Path(__file__).with_name('child').write_text(str(child.pid))\n"
    "print('working', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"good.py": GOOD, "bad.py": BAD, "slow.py": SLOW, "runner.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def start(folder: Path, *names: str, minutes: float = 1.0) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(folder / "runner.py"), str(folder), str(minutes), *names]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(HERE)})


def parts_of(folder: Path) -> dict[str, dict[str, object]]:
    return {part["part"]: part for part in json.loads((folder / "gpu.json").read_text())["parts"]}


def is_running(folder: Path) -> bool:
    try:
        stat = Path("/proc", (folder / "child").read_text(), "stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_no_part_costs_another_one(folder: Path) -> None:
    # The slow part gets what is left of 8 seconds after the seconds of the good one.
    assert start(folder, "bad", "lacking", "slow", "good", minutes=8 / 60).wait(60) == 0
    parts = parts_of(folder)
    assert list(parts) == ["bad", "lacking", "slow", "good"]
    assert parts["bad"]["status"] == "failed"
    assert parts["bad"]["last_lines"] == ["about to fail", "it failed"]
    assert parts["lacking"] == {
        "part": "lacking", "status": "skipped", "seconds": 0.0, "reason": "this Python lacks no_such_module",
    }  # fmt: skip
    assert parts["slow"]["status"] == "ran out of time"
    assert parts["slow"]["last_lines"] == ["working"]
    assert parts["good"]["result"] == {"words": ["--device", "cpu"]}
    log = (folder / "gpu.log").read_text()
    assert "=== slow: " in log
    assert "hello" in log
    assert not is_running(folder)


def test_no_time_left(folder: Path) -> None:
    assert start(folder, "good", minutes=0.0).wait(60) == 0
    assert parts_of(folder)["good"]["reason"] == "no time was left to start it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_what_there_is(folder: Path, number: signal.Signals) -> None:
    runner = start(folder, "good", "slow", "bad", minutes=5.0)
    wait_until(lambda: (folder / "child").exists(), 60)
    runner.send_signal(number)
    assert runner.wait(60) == 130
    assert [part["status"] for part in parts_of(folder).values()] == ["ok", "interrupted"]
    assert not is_running(folder)
