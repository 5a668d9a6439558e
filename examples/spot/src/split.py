"""Train a model that is split over ranks. The ranks stop after the same step, save together, and resume together."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from task import CHECKPOINTS, STOPPED, Net, batch
from torch.nn import functional


@smp.step
def train_step(model, inputs, labels):
    loss = functional.cross_entropy(model(inputs), labels)
    model.backward(loss)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    arguments, _ = parser.parse_known_args()

    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))  # [1] note the signal, and finish the step

    smp.init()
    torch.manual_seed(arguments.seed)
    model = smp.DistributedModel(Net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    step = 0
    if (CHECKPOINTS / "newest").exists():  # [2] resume from the checkpoint
        step = smp.resume_from_checkpoint(CHECKPOINTS)["step"]
        print(f"resumed_at={step}")

    while step < arguments.steps:
        inputs, labels = batch(step, arguments.seed)
        optimizer.zero_grad()
        loss = train_step(model, inputs, labels).reduce_mean()
        optimizer.step()
        step += 1
        if step % 20 == 0 and smp.rank() == 0:
            print(f"step={step} loss={loss.item():.4f}")
        # [3] save, and exit. SIGTERM reaches the ranks one after the other, maybe in different steps: they must agree.
        if any(smp.allgather(bool(signals), smp.WORLD)):
            smp.save_checkpoint(
                CHECKPOINTS, f"step{step}", model=model, optimizer=optimizer, user_content={"step": step}
            )
            print(f"saved_at={step}")
            sys.exit(STOPPED)

    smp.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt", partial=False)


if __name__ == "__main__":
    main()
