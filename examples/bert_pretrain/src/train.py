"""Train a BERT on text with PyTorch, first on short pairs, then on long ones: hidden words and the order of texts.

All settings are hyperparameters. The script is the same on any number of ranks.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from common.for_torch import world
from common.for_torch.checkpoints import Checkpoints
from common.for_torch.updates import Updates, build_optimizer
from common.loop import run
from common.order import Order, permutation
from models import build
from task import Batch, Scores, Task, parse
from torch import nn

from herringbone_parallel.torch.recipes.api import seeded


class Training(Task):
    """The task with PyTorch's model and optimizer."""

    shuffled = staticmethod(permutation)

    def build_model(self, vocabulary: int, length: int) -> nn.Module:
        with seeded(self.settings.seed):
            model = build(self.settings, vocabulary, length)
        self._parallel = self.world.wrap(model)
        return model

    def build_optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(self.settings, self.model)

    def build_updates(self, settings: argparse.Namespace, order: Order) -> Updates:
        return Updates(settings, self.world, self.model, self.optimizer, order)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that the next step depends on, for the checkpoints. Phases share the model and the optimizer."""
        updates = [phase.updates for phase in self.phases]
        return {**updates[0].parts, **{f"updates-{number}": later for number, later in enumerate(updates[1:], 2)}}

    def loss(self, batch: Batch) -> torch.Tensor:
        self._parallel.train()
        scored = self._parallel(*self._inputs(batch))
        labels = (torch.from_numpy(array).long().to(self.world.device) for array in (batch.words, batch.follows))
        return sum(nn.functional.cross_entropy(*pair) for pair in zip(scored, labels, strict=True))

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        self.model.eval()
        words, follows = self.model(*self._inputs(batch))
        return words.float().cpu().numpy(), follows.float().cpu().numpy()

    def _inputs(self, batch: Batch) -> list[torch.Tensor]:
        arrays = (batch.tokens, batch.kinds, batch.mask, batch.places)
        return [torch.from_numpy(array).to(self.world.device) for array in arrays]


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world, Checkpoints)


if __name__ == "__main__":
    main()
