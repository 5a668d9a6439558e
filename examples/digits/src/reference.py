"""The same training in one process of plain PyTorch, without partitions, microbatches or our library."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from digits import Net, batches, device, load
from torch.nn import functional


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    arguments, _ = parser.parse_known_args()

    torch.manual_seed(arguments.seed)
    data = load("training")
    model = Net().to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    for epoch in range(arguments.epochs):
        for images, labels in batches(data, epoch, arguments.seed):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch={epoch + 1} loss={loss.item():.4f}")
    with torch.no_grad():
        correct = (model(data["test_images"]).argmax(dim=1) == data["test_labels"]).sum().item()
    print(f"test_accuracy={correct / len(data['test_labels']):.4f}")
    torch.save(model.cpu().state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
