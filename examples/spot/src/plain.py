"""Train in plain PyTorch. On SIGTERM, save a checkpoint; the next run resumes from it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from task import STOPPED, Net, batch
from torch.nn import functional

from herringbone_parallel.torch.position.api import Training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))  # [1] note the signal, and finish the step

    torch.manual_seed(arguments.seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = Training(model=model, optimizer=optimizer)
    if training.resume():  # [2] resume from the newest checkpoint
        print(f"resumed_at={training.step}")

    while training.step < arguments.steps:
        inputs, labels = batch(training.step, arguments.seed)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if training.step % 20 == 0:
            print(f"step={training.step} loss={loss.item():.4f}")
        if signals:  # [3] save, and exit
            training.save()
            print(f"saved_at={training.step}")
            sys.exit(STOPPED)
        if training.step % 100 == 0:  # for the loss of a machine, which sends no signal
            training.save()

    torch.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
