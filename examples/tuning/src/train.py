"""Train a small network on handwritten digits, until the epoch that `--epochs` names.

A search by Hyperband starts this script again with more epochs. It then continues from the checkpoint of the earlier
job, so no epoch is trained twice. A job that is ended in the middle of an epoch continues there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from herringbone import log_metrics, log_progress
from herringbone_parallel.torch.position.api import Training

BATCH = 32


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    # A search on SageMaker adds arguments of its own.
    return parser.parse_known_args()[0]


def main() -> None:
    arguments = read_arguments()
    torch.manual_seed(1)
    data = torch.load(Path(os.environ["SM_CHANNEL_TRAINING"]) / "digits.pt", weights_only=True)
    net = nn.Sequential(nn.Linear(64, arguments.width), nn.ReLU(), nn.Linear(arguments.width, 10))
    if arguments.optimizer == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=arguments.lr, betas=(arguments.momentum, 0.999))
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=arguments.lr, momentum=arguments.momentum)

    training = Training(net=net, optimizer=optimizer)  # its folder is SM_CHECKPOINT_DIR
    training.resume()
    steps = -(-len(data["labels"]) // BATCH)
    for epoch in range(training.step // steps, arguments.epochs):
        # The order of an epoch depends on its number alone, so a resumed training sees the same batches.
        order = torch.randperm(len(data["labels"]), generator=torch.Generator().manual_seed(epoch))
        for part in order.split(BATCH)[training.step % steps :]:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(data["images"][part]), data["labels"][part])
            loss.backward()
            optimizer.step()
            if training.step % steps == steps // 2:
                training.save()
        with torch.no_grad():
            right = net(data["test_images"]).argmax(dim=1) == data["test_labels"]
        accuracy = right.double().mean().item()
        print(f"epoch={epoch + 1} loss={loss.item():.4f} accuracy={accuracy:.4f}", flush=True)
        log_metrics({"loss": loss.item(), "accuracy": accuracy}, step=epoch + 1)
        log_progress(epoch + 1, arguments.epochs, unit="epoch")
        training.save()
    torch.save(net.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
