"""Kill a training at random moments and in its saves, until it has ended, and compare it with an undisturbed one.

Usage: `.venv/bin/python -m tests.campaigns.restarts [--kills 200] [--seed N]` from the root of the repository.
The last line is JSON: the kills, those that met a save, the trainings, and what is wrong. The exit code is 1 then.

The training has shuffled data, augmentation, dropout, a scheduler, and workers in every second one. Each step is
written down with its samples and its loss. The steps that count are those that no later start has repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from herringbone_parallel.torch.position.api import Training
from tests.parallel.torch.processes import PROCESSES

SAMPLES, EPOCHS = 48, 2
# Of an undisturbed training; kills come within it.
SECONDS = 0.6


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((4,), index / SAMPLES) + random.random() * 0.1


def train(folder: str, log: str, workers: int) -> None:
    """Train from the newest checkpoint on; write down each step, and at last the weights."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], 0.5)
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers)
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)
    training.resume()
    with Path(log).open("a", buffering=1) as file:
        for epoch in range(training.epoch, EPOCHS):
            for indices, inputs in loader:
                optimizer.zero_grad()
                loss = (model(inputs).squeeze(1) - indices / SAMPLES).square().mean()
                loss.backward()
                optimizer.step()
                file.write(json.dumps([training.step, epoch, indices.tolist(), loss.item()]) + "\n")
                time.sleep(SECONDS / (2 * SAMPLES / 4))
                if training.step % 2 == 0:
                    training.save(in_background=training.step % 4 == 0)
            scheduler.step()
        file.write(json.dumps([-1, *(value.flatten().tolist() for value in model.parameters())]) + "\n")


def told(log: Path) -> dict[int, Any]:
    """Return what was written down last about each step; a line that a kill has cut is left out."""
    steps = {}
    for line in log.read_text().split("\n") if log.exists() else ():
        with contextlib.suppress(ValueError):
            number, *rest = json.loads(line)
            steps[number] = rest
    return steps


def killed(folder: Path, log: Path, workers: int, moment: float | None) -> tuple[bool, bool]:
    """Run a training and kill it after so many seconds, or in a save; return whether it was killed, and in a save."""
    process = PROCESSES.Process(target=train, args=(str(folder), str(log), workers))
    process.start()
    begin = time.monotonic()
    while process.is_alive():
        saves = list(folder.glob(".*.unfinished")) if folder.exists() else []
        if (moment is None and saves) or (moment is not None and time.monotonic() - begin > moment):
            # With the loader's workers. It has no group of its own before it begins.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.0005)
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a training ended with {process.exitcode}")
    return process.exitcode != 0, bool(list(folder.glob(".*.unfinished"))) if folder.exists() else False


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    result: dict[str, Any] = {"kills": 0, "in_a_save": 0, "trainings": 0, "wrong": []}
    with tempfile.TemporaryDirectory(prefix="hb-restarts-") as base:
        whole = []
        for workers in range(2):
            killed(Path(base, f"whole-{workers}"), Path(base, f"whole-{workers}.log"), workers, 1e9)
            whole.append(told(Path(base, f"whole-{workers}.log")))
        while result["kills"] < arguments.kills:
            number = result["trainings"]
            folder, log = Path(base, f"t-{number}"), Path(base, f"t-{number}.log")
            for kill in range(6):
                # The last start of a training is left alone.
                moment = 1e9 if kill == 5 else None if chance.random() < 0.4 else chance.uniform(0.1, SECONDS + 0.6)
                was_killed, in_a_save = killed(folder, log, number % 2, moment)
                result["kills"] += was_killed
                result["in_a_save"] += was_killed and in_a_save
                if not was_killed:
                    break
            steps = told(log)
            if steps != whole[number % 2]:
                first = next((step for step in whole[number % 2] if steps.get(step) != whole[number % 2][step]), None)
                result["wrong"].append({"training": number, "first step that differs": first})
            result["trainings"] += 1
            print(json.dumps(result), flush=True)
    print(json.dumps(result))
    return bool(result["wrong"])


if __name__ == "__main__":
    sys.exit(main())
