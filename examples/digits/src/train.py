"""Train a small network on handwritten digits, split over the ranks of a pipeline, with a script for SageMaker."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from digits import BATCH, Net, batches, device, load
from torch.nn import functional
from tqdm import tqdm

from herringbone_parallel.torch.position.api import Training


@smp.step
def train_step(model, images, labels):
    loss = functional.cross_entropy(model(images), labels)
    model.backward(loss)
    return loss


@smp.step
def test_step(model, images, labels):
    predicted = model(images).argmax(dim=1)
    return (predicted == labels).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    arguments, _ = parser.parse_known_args()

    smp.init()
    torch.manual_seed(arguments.seed)
    data = load("training")
    model = smp.DistributedModel(Net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9))

    training = Training(model=model, optimizer=optimizer)
    training.resume()
    per_epoch = len(data["train_labels"]) // BATCH

    first = smp.rank() == 0
    progress = tqdm(
        total=arguments.epochs * per_epoch, initial=training.step, desc="training", unit="step", disable=not first
    )
    for epoch in range(training.step // per_epoch, arguments.epochs):
        for images, labels in batches(data, epoch, arguments.seed)[training.step % per_epoch :]:
            optimizer.zero_grad()
            loss = train_step(model, images, labels).reduce_mean()
            optimizer.step()
            progress.update()
            if training.step % per_epoch == per_epoch // 2:
                training.save()
        if first:
            progress.write(f"epoch={epoch + 1} loss={loss.item():.4f}")
    progress.close()

    count = sum(parameter.numel() for parameter in model.local_parameters())
    print(f"this rank holds {count} parameters on {device()}")
    with torch.no_grad():
        correct = test_step(model, data["test_images"], data["test_labels"]).reduce_sum()
    if first:
        print(f"test_accuracy={correct.item() / len(data['test_labels']):.4f}")
    smp.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt", partial=False)


if __name__ == "__main__":
    main()
