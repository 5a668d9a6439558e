"""The same training in one process of plain PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from gpt import Text, build, loss_of, parse

from herringbone_parallel.torch.recipes.api import Schedule


def main() -> None:
    settings = parse()
    text, model = Text(settings), build(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    schedule = Schedule(length=settings.steps, warmup=settings.warmup).by_steps()
    for step in range(settings.steps):
        tokens, targets = text.batch(step)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * schedule(step)
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step={step + 1} loss={loss.item():.7f}")
    torch.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
