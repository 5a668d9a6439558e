"""Train in plain PyTorch. On SIGTERM, save a checkpoint; the next run resumes from it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from task import CHECKPOINTS, STOPPED, Net, batch
from torch.nn import functional

FILE = CHECKPOINTS / "state.pt"


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
    step = 0
    if FILE.exists():  # [2] resume from the checkpoint
        state = torch.load(FILE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed_at={step}")

    while step < arguments.steps:
        inputs, labels = batch(step, arguments.seed)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step={step} loss={loss.item():.4f}")
        if signals:  # [3] save, and exit; the rename makes a half-written checkpoint impossible
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            FILE.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, FILE.with_suffix(".new"))
            FILE.with_suffix(".new").replace(FILE)
            print(f"saved_at={step}")
            sys.exit(STOPPED)

    torch.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
