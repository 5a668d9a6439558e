"""A loop of `tests/huggingface/resumed_loops.py`, which knows nothing of Herringbone, with the campaign's log."""

import argparse
import os
import sys
from typing import Any

from steplog import StepLog

sys.path.insert(0, os.environ["LOOP_ROOT"])
from tests.huggingface import resumed_loops

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
arguments, _ = parser.parse_known_args()
steps = StepLog(int(os.environ["RANK"]))


class Log(resumed_loops.Log):
    def step(self, epoch: int, step: int) -> None:
        steps.step(step, epoch, self.samples, self.loss)
        self.samples = []

    def end(self, model: Any) -> None:
        steps.end(value for weight in model.state_dict().values() for value in weight.flatten().tolist())


resumed_loops.Log = Log  # type: ignore[misc]
batch = 8 // int(os.environ["WORLD_SIZE"])
options: dict[str, Any] = {"batch_size": batch} if arguments.kind in ("accelerate", "lightning") else {}
if arguments.kind in ("trainer", "peft"):
    options = {"per_device_train_batch_size": batch}
getattr(resumed_loops, arguments.kind)(os.environ["SM_CHECKPOINT_DIR"], "", **options)
