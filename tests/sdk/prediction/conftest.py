"""Fixtures: a forecaster with stand-ins for its programs, and the notes that these wrote."""

import json
import sys
from pathlib import Path

import pytest

from herringbone.prediction.forecast import Forecaster, Programs
from herringbone.prediction.machine import Machine
from herringbone.prediction.measuring import Program

PROGRAM = str(Path(__file__).with_name("programs.py"))


@pytest.fixture
def folder(tmp_path):
    """The folder of the stand-ins: their notes, their `behaviour`, and the `load` of the machine."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "load").write_text("")
    return folder


@pytest.fixture
def notes(folder):
    """Returns what a program wrote down: a list with one entry for each of its runs."""

    def read(name):
        path = folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def forecaster(make_forecaster):
    return make_forecaster()


@pytest.fixture
def make_forecaster(home, folder):
    """Returns a forecaster of a machine with 16 GiB and 4 cores, where an ml.p4d.24xlarge costs $32 an hour."""
    machine = Machine(memory_bytes=16 << 30, cores=4)
    prices = {"ml.p4d.24xlarge": 32.0}
    measure, timing, predict = (
        (sys.executable, PROGRAM, str(folder), kind) for kind in ("measure", "timing", "predict")
    )
    # Their notes are files outside of the namespaces.
    programs = Programs(Program(measure, alone=False), Program(timing, alone=False), predict)
    boundaries = {
        "machine": lambda: machine._replace(load=float((folder / "load").read_text() or 0)),
        "price": lambda name, _: prices.get(name),
        "has_torch": lambda: True,
    }
    return lambda **others: Forecaster(home, programs, **boundaries | others)
