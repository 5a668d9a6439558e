"""Train a Mask R-CNN in MXNet on images in COCO's format, on any number of ranks."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx
import numpy as np
from common.for_mxnet import world
from common.for_mxnet.updates import Updates, build_trainer
from common.loop import run
from models import MaskRCNN, build
from pasting import pasted
from task import Task, parse


class Training(Task):
    """The task with Gluon's model and trainer."""

    def build_model(self, classes: int) -> MaskRCNN:
        self.refuse_settings_of_torch("MXNet")
        self.world.require_fp32(self.settings.precision)
        # Every rank draws the same weights from the seed. The trainer compares them before the first step.
        mx.random.seed(self.settings.seed)
        model = build(self.settings.model, classes, self.world.device)
        if self.settings.double:
            model.cast("float64")
        return model

    def build_updates(self) -> Updates:
        trainer = build_trainer(self.settings, self.world, self.model)
        return Updates(self.settings, self.world, self.model, trainer, self.order)

    def loss(self, part: tuple[Any, Any]) -> Any:
        seed, images = part
        pixels, targets = zip(*images, strict=True)
        # NumPy's generator reads no negative seed.
        return sum(self.model.losses_of(pixels, targets, int(seed.view(np.uint64))).values())

    def detect(self, image: Any) -> dict[str, Any]:
        output = self.model.detect(image)
        output["masks"] = pasted(output["masks"], output["boxes"], *image.shape[:2])
        return output


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
