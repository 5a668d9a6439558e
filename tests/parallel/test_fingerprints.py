"""Records of steps without torch: what they have, and what a comparison says of trainings with planted faults."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from herringbone_contract.rehearsal.comparison import compare
from herringbone_contract.rehearsal.records import LOCAL, WHOLE, Process, Run, Step
from herringbone_contract.rehearsal.verdict import Outcome, Reason
from herringbone_parallel.fingerprints import Facts, Recorder
from tests.e2e.test_mxnet import PYTHON as MXNET
from tests.e2e.test_tensorflow import PYTHON as TENSORFLOW
from tests.e2e.test_tensorflow import SOURCES

FAULTS = {"order": Reason.ORDER, "state": Reason.OPTIMIZER, "rate": Reason.SETTINGS}


class Optimizer:
    """Anything that can be told apart."""


def facts(value: float = 1.0, numbers: Any = dict) -> Facts:
    tensors = {"weight": np.full(2, value), "mean": np.array([np.inf])}
    return Facts(tensors, frozenset({"mean"}), {"momentum": [np.zeros(2)]}, {"lr": 0.1}, numbers)


def test_a_record_has_what_a_step_began_with() -> None:
    steps: list[Step] = []
    recorder, optimizer, numbers = Recorder(), Optimizer(), iter("aabcde")
    recorder.begin(lambda step, _rank: steps.append(step))
    recorder.batch(lambda: [np.arange(6).reshape(3, 2), np.array([0, 1, 0]), np.array(5.0)])
    with recorder.step(optimizer, lambda: facts(numbers=lambda: {"layers": next(numbers)})):
        pass
    recorder.batch(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    with recorder.step(optimizer, lambda: facts(2.0, lambda: {"layers": next(numbers)})):
        pass
    with recorder.step(Optimizer(), lambda: 1 // 0):  # type: ignore[arg-type, return-value]
        pass
    first, second, third = steps
    assert (first.number, second.number, third.number) == (1, 2, 3)
    assert (first.optimizer, second.optimizer, third.optimizer) == (0, 0, 1)
    assert len(set(first.samples)) == 3
    assert len(first.batches[0]) == 4
    assert {name: tensor.place for name, tensor in first.tensors.items()} == {"weight": WHOLE, "mean": LOCAL}
    assert (first.tensors["weight"].squares, first.tensors["mean"].total) == (2.0, None)
    assert (first.draws, second.draws) == (False, True)
    assert first.tensors["weight"] != second.tensors["weight"]
    assert [step.missing for step in steps] == [
        [],
        ["samples: ZeroDivisionError: integer division or modulo by zero"],
        ["weights: ZeroDivisionError: integer division or modulo by zero"],
    ]


def test_a_step_that_fails_is_none() -> None:
    recorder = Recorder()
    recorder.begin(lambda *_: pytest.fail("a step"))
    with pytest.raises(OSError, match="lost"), recorder.step(Optimizer(), facts):
        raise OSError("lost")


@pytest.mark.parametrize(
    ("folder", "python"),
    [
        pytest.param("tensorflow", TENSORFLOW, marks=pytest.mark.tensorflow),
        pytest.param("mxnet", MXNET, marks=pytest.mark.mxnet),
    ],
)
def test_planted_faults_are_named_and_the_training_is_the_same(folder: str, python: Path) -> None:
    if not python.exists():
        pytest.skip(f"there is no Python with it: tests/{folder}/setup makes one")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = os.pathsep.join(SOURCES)
    program = Path(__file__).parent / folder / "programs" / "recorded.py"
    done = subprocess.run([python, program, *FAULTS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    records = msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, list[list[Step]]])
    whole = [step for process in records["plain"] for step in process]
    assert [step.number for step in whole] == [1, 2, 3, 4, 5, 6]
    assert all(len(step.samples) == 4 and not step.missing for step in whole)
    if "several" in records:
        assert [step for process in records["several"] for step in process] == whole
    undisturbed = Run({0: [Process(whole)]})
    for name, processes in records.items():
        verdict = compare([undisturbed, undisturbed], restarted(processes))
        if name in FAULTS:
            assert verdict.first is not None
            assert (verdict.first.reason, verdict.first.step) == (FAULTS[name], 4), name
        else:
            assert (verdict.outcome, verdict.findings) == (Outcome.EQUAL, ()), name


def restarted(processes: list[list[Step]]) -> Run:
    """Return a run whose second process counts its steps from 1 on."""
    first, second = processes
    counted = [msgspec.structs.replace(step, number=number) for number, step in enumerate(second, 1)]
    return Run({0: [Process(first, began=1.0), Process(counted, began=2.0)]})
