"""Train torchvision's Mask R-CNN on images in COCO's format, on any number of ranks."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from coco import Coco
from common.data import DataError
from common.for_torch import world
from common.for_torch.checkpoints import Checkpoints
from common.for_torch.updates import Updates, build_optimizer
from common.loop import run
from common.order import permutation
from images import load
from models import build
from task import Task, parse
from torch import Tensor, nn
from torch.utils.data import DataLoader

from herringbone_parallel.torch.recipes.api import seeded


class Images:
    """The images of a COCO file, [3, height, width] in 0..1, and their targets in torchvision's format."""

    def __init__(self, data: Coco) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        pixels, target = load(self._data, index)
        return torch.from_numpy(pixels).permute(2, 0, 1) / 255, {
            name: torch.from_numpy(value) for name, value in target.items()
        }


class Training(Task):
    """The task with torchvision's model and PyTorch's optimizer."""

    shuffled = staticmethod(permutation)

    def build_model(self, classes: int) -> nn.Module:
        with seeded(self.settings.seed):
            model = build(self.settings.model, classes, weights=published())
        self._kind = torch.float64 if self.settings.double else torch.float32
        self._parallel = self.world.wrap(model.to(self._kind))
        return model

    def build_updates(self) -> Updates:
        optimizer = build_optimizer(self.settings, self.model)
        return Updates(self.settings, self.world, self.model, optimizer, self.order)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that the next step depends on, for the checkpoints."""
        return self.updates.parts

    def loss(self, part: tuple[Any, list[tuple[Tensor, dict[str, Tensor]]]]) -> Tensor:
        self._parallel.train()
        seed, images = part
        torch.manual_seed(int(seed))
        return sum(self._parallel([image for image, _ in images], [target for _, target in images]).values())

    @torch.no_grad()
    def detect(self, image: Tensor) -> dict[str, Any]:
        self.model.eval()
        (output,) = self.model([image])
        output["masks"] = output["masks"][:, 0]
        return {name: value.cpu().numpy() for name, value in output.items()}

    def batches(self, data: Coco, parts: list[list[int]]) -> Iterator[list[tuple[Tensor, dict[str, Tensor]]]]:
        """Yield the images of each part on the rank's device; other processes read them, if `--workers` says so."""
        device, kind, workers = self.world.device, self._kind, self.settings.workers
        for part in DataLoader(Images(data), batch_sampler=parts, num_workers=workers, collate_fn=list):
            targets = [{name: value.to(device) for name, value in target.items()} for _, target in part]
            for target in targets:
                target["boxes"] = target["boxes"].to(kind)
            images = (image.to(device, kind) for image, _ in part)
            yield list(zip(images, targets, strict=True))


def published() -> Path | None:
    """Return the file of the channel `weights`, or None if the job does not have this channel."""
    if "SM_CHANNEL_WEIGHTS" not in os.environ:
        return None
    folder = Path(os.environ["SM_CHANNEL_WEIGHTS"])
    files = sorted(folder.iterdir())
    if len(files) != 1:
        raise DataError(
            f"{folder} has {len(files)} files; it needs exactly one, a state dict as torchvision publishes it"
        )
    return files[0]


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world, Checkpoints)


if __name__ == "__main__":
    main()
