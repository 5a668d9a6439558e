"""Train a Mask R-CNN on images in COCO's format, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from coco import Coco, read
from common import world
from common.data import DataError
from common.loop import run
from common.order import Order
from common.settings import add_settings, truth
from common.updates import Updates, build_optimizer
from common.world import World
from images import Images
from models import SIZES, build
from scoring import average_precision, describe
from torch import Tensor
from torch.utils.data import DataLoader

from herringbone_parallel.torch.recipes.api import seeded

Batch = tuple[list[Tensor], list[dict[str, Tensor]]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("sgd", "lars"))
    parser.set_defaults(clip=10.0, decay="cosine")
    parser.add_argument("--model", choices=SIZES, default="resnet50")
    parser.add_argument("--double", type=truth, default=False, help="weights and arithmetic in fp64")
    parser.add_argument("--workers", type=int, default=0, help="processes per rank that read images")
    return parser.parse_known_args()[0]


class Training:
    """This rank's part of a training run on all ranks."""

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self._settings, self._world, self.epochs = settings, world, settings.epochs
        self._data, self._test = read(train), read(test)
        if self._data.categories != self._test.categories:
            raise DataError(f"{self._data.file} and {self._test.file} differ in their categories")
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self._data.pictures), **batches, ranks=world.ranks, seed=settings.seed)
        with seeded(settings.seed):
            self.model = build(settings.model, len(self._data.categories), weights=published())
        self._kind = torch.float64 if settings.double else torch.float32
        self._parallel = world.wrap(self.model.to(self._kind))
        self._updates = Updates(settings, world, self.model, build_optimizer(settings, self.model), self.order)

    def epoch(self, number: int) -> Iterator[float]:
        """Train one epoch. Yield the mean loss of each step over all ranks."""
        self._parallel.train()
        steps = self.order.epoch(number, rank=self._world.rank)
        batches = self._loader(self._data, [part for step in steps for part in step])

        def loss_of(part: list[int]) -> Tensor:
            images, targets = next(batches)
            # The model draws the boxes to learn from. A seed from the part gives the same boxes on any rank.
            torch.manual_seed(hash((self._settings.seed, number, *part)))
            return sum(self._parallel(images, targets).values())

        for step in steps:
            yield self._updates.step(step, loss_of)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the average precision of masks and of boxes. Each rank detects in a part of the images."""
        self.model.eval()
        indices = range(self._world.rank, len(self._test.pictures), self._world.ranks)
        detections = []
        batches = self._loader(self._test, [[index] for index in indices])
        for index, (images, _) in zip(indices, batches, strict=True):
            (output,) = self.model(images)
            detections += describe(self._test.pictures[index].number, self._test.categories, output)
        # Average precision ranks the detections of all images by score, so it is no mean over ranks.
        lists = [json.loads(text) for text in self._world.gather(json.dumps(detections))]
        precision = average_precision(self._test.file, [detection for part in lists for detection in part])
        return {"eval_mask_ap": precision["segm"], "eval_box_ap": precision["bbox"]}

    def _loader(self, data: Coco, parts: list[list[int]]) -> Iterator[Batch]:
        device, kind, workers = self._world.device, self._kind, self._settings.workers
        for part in DataLoader(Images(data), batch_sampler=parts, num_workers=workers, collate_fn=list):
            targets = [{name: value.to(device) for name, value in target.items()} for _, target in part]
            for target in targets:
                target["boxes"] = target["boxes"].to(kind)
            yield [image.to(device, kind) for image, _ in part], targets


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
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
