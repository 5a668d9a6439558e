"""The hyperparameters that every training example has. Their values come from the estimator's `hyperparameters`."""

from __future__ import annotations

import argparse

from herringbone_parallel.core.recipes.large_batch import scale_learning_rate
from herringbone_parallel.core.recipes.learning_rate import Schedule


def add_settings(parser: argparse.ArgumentParser, *, optimizers: tuple[str, ...]) -> None:
    """Add the shared hyperparameters. Each example adds its other ones itself."""
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="stop after this number of steps, also within an epoch")
    parser.add_argument("--save-every", type=int, help="steps between two checkpoints (PyTorch only; default: 100)")
    parser.add_argument("--global-batch", type=int, default=64, help="examples of one step on all ranks together")
    parser.add_argument("--rank-batch", type=int, default=8, help="examples of one forward on a rank")
    parser.add_argument("--base-batch", type=int, help="the batch that --lr is meant for (default: the global batch)")
    parser.add_argument("--optimizer", choices=optimizers, default=optimizers[0])
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--scaling", choices=["linear", "sqrt"], default="linear", help="how --lr grows with the batch")
    parser.add_argument("--warmup", type=float, default=0.0, help="epochs")
    parser.add_argument("--decay", choices=["polynomial", "cosine", "constant"], default="polynomial")
    parser.add_argument("--power", type=float, default=1.0, help="of the polynomial")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--trust", type=float, default=0.001, help="of LARS")
    parser.add_argument("--clip", type=float, help="largest norm of the gradients (default: no limit)")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, help="end training when the evaluation reaches this value")
    parser.add_argument("--require-target", type=truth, default=False, help="fail if the target is never reached")
    parser.add_argument("--alone", type=float, help="samples/s of a job with one rank, for the scaling efficiency")


def truth(text: str) -> bool:
    """Convert `true` or `false`, as hyperparameters spell booleans."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the hyperparameters of a BERT with random initial weights."""
    for name, size in (("vocabulary", 4000), ("width", 64), ("depth", 2), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=size, help="of a model from scratch")
    parser.add_argument("--dropout", type=float, default=0.0, help="of a model from scratch")


def sizes(settings: argparse.Namespace) -> dict[str, float]:
    """Return the values of `add_sizes` without the vocabulary, whose size the tokenizer knows."""
    return {name: getattr(settings, name) for name in ("width", "depth", "heads", "dropout")}


def learning_rate(settings: argparse.Namespace) -> float:
    """Return the schedule's highest rate: `--lr`, scaled to the global batch."""
    base = settings.base_batch or settings.global_batch
    return scale_learning_rate(settings.lr, batch=settings.global_batch, base_batch=base, rule=settings.scaling)


def schedule_of(settings: argparse.Namespace) -> Schedule:
    """Return the factors of the learning rate over the epochs."""
    return Schedule(length=settings.epochs, warmup=settings.warmup, decay=settings.decay, power=settings.power)
