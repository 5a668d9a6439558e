"""Train a BERT to find answers in a text with PyTorch, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import functools
from typing import Any

import torch
from common.for_torch import world
from common.for_torch.checkpoints import Checkpoints
from common.for_torch.updates import Updates, build_optimizer
from common.loop import run
from common.order import permutation
from models import build
from task import Batch, Scores, Task, parse
from torch import nn

from herringbone_parallel.torch.recipes.api import seeded


class Training(Task):
    """The task with PyTorch's model and optimizer."""

    shuffled = staticmethod(permutation)

    def build_model(self, vocabulary: int) -> nn.Module:
        with seeded(self.settings.seed):
            model = build(self.settings, vocabulary)
        self._parallel = self.world.wrap(model)
        return model

    def build_updates(self) -> Updates:
        optimizer = build_optimizer(self.settings, self.model)
        return Updates(self.settings, self.world, self.model, optimizer, self.order)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that the next step depends on, for the checkpoints."""
        return self.updates.parts

    def loss(self, batch: Batch) -> torch.Tensor:
        self._parallel.train()
        scored = self._parallel(*self._inputs(batch))
        targets = (torch.from_numpy(indices).long().to(self.world.device) for indices in (batch.begins, batch.ends))
        return sum(nn.functional.cross_entropy(*pair) for pair in zip(scored, targets, strict=True)) / 2

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        self.model.eval()
        begins, ends = self.model(*self._inputs(batch))
        return begins.float().tolist(), ends.float().tolist()

    def _inputs(self, batch: Batch) -> list[torch.Tensor]:
        arrays = (batch.tokens, batch.kinds, batch.mask)
        return [torch.from_numpy(array).to(self.world.device) for array in arrays]


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world, Checkpoints)


if __name__ == "__main__":
    main()
