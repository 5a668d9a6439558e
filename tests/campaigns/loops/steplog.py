"""Writes down the steps of a training for `tests/campaigns/loops.py`: one line a step, at last the weights."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class StepLog:
    def __init__(self, rank: int) -> None:
        self._path = Path(os.environ["LOOP_LOG"], f"{rank}.jsonl")
        self._write(["pid", os.getpid()])

    def step(self, step: int, epoch: int, samples: Iterable[Any], loss: float) -> None:
        self._write([step, epoch, [int(sample) for sample in samples], loss])
        # So that the campaign meets it in its middle.
        time.sleep(float(os.environ["LOOP_SECONDS"]))

    def end(self, weights: Iterable[Any]) -> None:
        self._write(["end", [float(value) for value in weights]])

    def _write(self, line: Any) -> None:
        # One write, so that a kill cuts no line.
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")
