"""Operations of a measurement are called again and timed."""

import json
import time
from pathlib import Path

import pytest
import torch

from herringbone_parallel.core.prediction.measurement import (
    Call,
    Measurement,
    Module,
    Operation,
    Phase,
    parse_timings,
    to_text,
)
from herringbone_parallel.torch.measure import timing
from herringbone_parallel.torch.measure.replay import Replay

MATRIX = {"tensor": "float32", "shape": [8, 8]}
TRANSPOSED = {**MATRIX, "strides": [1, 8]}
INDICES = {"tensor": "int64", "shape": [4]}


def operation(name: str, *arguments: object, **keywords: object) -> Operation:
    return Operation(name, ((8, 8),), "float32", 0, 512, arguments=json.dumps([arguments, keywords]))


OPERATIONS = (
    operation("aten.mm.default", MATRIX, TRANSPOSED),
    operation("aten.embedding.default", MATRIX, INDICES),
    operation("aten._foreach_add_.List", [MATRIX, MATRIX], [MATRIX, MATRIX], alpha=2),
    operation("aten.masked_fill.Scalar", MATRIX, {"tensor": "bool", "shape": [8, 8]}, {"float": "-inf"}),
    operation("aten.zeros_like.default", MATRIX, dtype={"dtype": "float64"}, device={"device": "cpu"}),
    operation("aten.contiguous.default", TRANSPOSED, memory_format={"memory_format": "contiguous_format"}),
    # These cannot be called: nothing of this name, an illegal argument, no recorded arguments.
    operation("herringbone.missing.default", MATRIX),
    operation("aten.mm.default", MATRIX, INDICES),
    Operation("aten.mm.default", ((8, 8),), "float32", 0, 512),
)
PHASES = (Phase.FORWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD)
STEP = Measurement(
    framework="torch",
    device="cpu",
    modules=(Module("", "Model"),),
    parameters=(),
    operations=OPERATIONS,
    calls=tuple(Call(i, 0, PHASES[i] if i < len(PHASES) else Phase.FORWARD) for i in range(len(OPERATIONS))),
    tensors=(),
)


def test_each_operation_that_can_be_called_is_timed() -> None:
    noted: list[int] = []
    seconds = Replay(STEP, torch.device("cpu"), skipped=[1], note=noted.append).run(0.2)
    assert set(seconds) == {0, 2, 3, 4, 5}
    assert all(0 < time_s < 0.1 for time_s in seconds.values())
    # Everything is noted before its call, in case that it kills the process, but what must not be called.
    assert set(noted) == set(range(len(OPERATIONS))) - {1}


def test_two_processes_time_a_measurement_and_their_messages(tmp_path: Path) -> None:
    measurement, output = tmp_path / "step.json", tmp_path / "timings.json"
    measurement.write_bytes(to_text(STEP))
    # Two processes run at once only where the machine has two cores.
    options = ["--output", str(output), "--processes", "2", "--threads", "1", "--budget", "0.1"]
    assert timing.main([str(measurement), *options]) == 0
    timings = parse_timings(output.read_bytes())
    assert set(timings.seconds) == {0, 1, 2, 3, 4, 5}
    assert timings.device == "cpu"
    assert timings.dispatch_seconds["forward"] > 0
    assert timings.copied_bytes_per_second is not None
    if timings.processes == 2:
        assert set(timings.collectives) == {"all_reduce", "all_gather", "reduce_scatter", "send"}


@pytest.mark.parametrize("text", [b"{}", None])
def test_a_wrong_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None) -> None:
    path = tmp_path / "step.json"
    if text is not None:
        path.write_bytes(text)
    assert timing.main([str(path), "--output", str(tmp_path / "timings.json")]) == 2
    assert capsys.readouterr().err.startswith("timing: ")


def test_operation_that_kills_a_process_while_another_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Instead of Python: process 0 waits for process 1, which notes its operation and crashes.
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"--worker 0") exec sleep 60;; esac\necho 7 > {tmp_path}/1.note\nkill -SEGV $$\n'
    )
    program.chmod(0o700)
    monkeypatch.setattr(timing.sys, "executable", str(program))
    begin = time.monotonic()
    assert timing._run(tmp_path, tmp_path, processes=2, threads=1, budget_s=0.1, skipped=[]) == ([], 7)
    assert time.monotonic() - begin < 30


def test_free_memory_of_a_system_that_does_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.os, "sysconf_names", {})
    assert timing._free_bytes() > 1 << 30
