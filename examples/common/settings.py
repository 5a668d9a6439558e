"""The hyperparameters that every training example has; their values come from the estimator's dict alone."""

from __future__ import annotations

import argparse


def add_settings(parser: argparse.ArgumentParser, *, optimizers: tuple[str, ...]) -> None:
    """Add them; what an example needs besides, it adds itself."""
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="stop after so many steps, whatever the epochs")
    parser.add_argument("--global-batch", type=int, default=64, help="examples of one step, all ranks together")
    parser.add_argument("--rank-batch", type=int, default=8, help="examples of one forward on a rank")
    parser.add_argument("--base-batch", type=int, help="what --lr is right for (default: the global batch)")
    parser.add_argument("--optimizer", choices=optimizers, default=optimizers[0])
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--scaling", choices=["linear", "sqrt"], default="linear", help="of --lr with the batch")
    parser.add_argument("--warmup", type=float, default=0.0, help="epochs")
    parser.add_argument("--decay", choices=["polynomial", "cosine", "constant"], default="polynomial")
    parser.add_argument("--power", type=float, default=1.0, help="of the polynomial")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--trust", type=float, default=0.001, help="of LARS")
    parser.add_argument("--clip", type=float, help="greatest norm of the gradients (default: any)")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, help="what the evaluation has to reach; training ends there")
    parser.add_argument("--require-target", type=truth, default=False, help="fail when it is never reached")
    parser.add_argument("--alone", type=float, help="samples/s of one rank by itself, for the scaling efficiency")


def truth(text: str) -> bool:
    """Read a yes or no as hyperparameters have them."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
