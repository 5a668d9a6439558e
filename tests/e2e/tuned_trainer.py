"""Softmax regression on handwritten digits in pure Python: the same numbers on any machine, and in any small image."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from pathlib import Path

from herringbone_contract.events.script import log_metrics

CLASSES = 10


def scores(weights: list[list[float]], image: list[float]) -> list[float]:
    """Return the probability of each class."""
    sums = [sum(map(float.__mul__, row, image)) for row in weights]
    highest = max(sums)
    powers = [math.exp(value - highest) for value in sums]
    total = sum(powers)
    return [power / total for power in powers]


def train(weights: list[list[float]], digits: list[tuple[list[float], int]], lr: float, decay: float) -> None:
    """Go over all digits once, with a step of gradient descent for each."""
    for image, label in digits:
        for number, probability in enumerate(scores(weights, image)):
            step = lr * (probability - (number == label))
            weights[number] = [w - step * x - lr * decay * w for w, x in zip(weights[number], image, strict=True)]


def loss(weights: list[list[float]], digits: list[tuple[list[float], int]]) -> float:
    """Return the cross entropy on digits."""
    return -sum(math.log(max(scores(weights, image)[label], 1e-12)) for image, label in digits) / len(digits)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=9)
    arguments, _ = parser.parse_known_args()
    data = json.loads((Path(os.environ["SM_CHANNEL_TRAINING"]) / "digits.json").read_text())
    state = Path(os.environ["SM_CHECKPOINT_DIR"]) / "state.json"
    epoch, weights = 0, [[0.0] * len(data["train"][0][0]) for _ in range(CLASSES)]
    if state.exists():
        epoch, weights = json.loads(state.read_text())
    print(f"begins at epoch {epoch}")
    while epoch < arguments.epochs:
        epoch += 1
        digits = random.Random(epoch).sample(data["train"], len(data["train"]))
        train(weights, digits, arguments.lr, arguments.decay)
        log_metrics({"test_loss": loss(weights, data["test"])}, step=epoch)
        partial = state.with_suffix(f".{os.environ.get('SM_CURRENT_HOST', '')}")
        partial.write_text(json.dumps([epoch, weights]))
        partial.replace(state)
    (Path(os.environ["SM_MODEL_DIR"]) / "weights.json").write_text(json.dumps(weights))


if __name__ == "__main__":
    main()
