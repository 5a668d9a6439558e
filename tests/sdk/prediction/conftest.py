"""Fixtures: a forecaster with stand-ins for its programs, and the notes that these wrote."""

import json
import sys
from pathlib import Path

import pytest

from herringbone.prediction.forecast import Forecaster, Programs
from herringbone.prediction.machine import Machine

PROGRAM = str(Path(__file__).with_name("programs.py"))
PROGRAMS = Programs(*[(sys.executable, PROGRAM, kind) for kind in ("measure", "timing", "predict")])


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Returns what a program wrote down: a list with one entry for each of its runs."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("PREDICTION_NOTES", str(folder))

    def read(name):
        path = folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def forecaster(home, notes):
    """A forecaster of a machine with 16 GiB and 4 cores, where an ml.p4d.24xlarge costs $32 an hour."""
    machine = Machine(memory_bytes=16 << 30, cores=4)
    prices = {"ml.p4d.24xlarge": 32.0}
    return Forecaster(
        home, PROGRAMS, machine=lambda: machine, price=lambda name, _: prices.get(name), has_torch=lambda: True
    )
