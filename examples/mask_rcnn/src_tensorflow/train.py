"""Train a Mask R-CNN in TensorFlow on images in COCO's format, on any number of ranks."""

from __future__ import annotations

import functools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common.data import DataError
from common.for_tensorflow import world
from common.for_tensorflow.updates import Updates, build_optimizer
from common.loop import run
from models import MaskRCNN, build
from task import Task, parse


class Training(Task):
    """The task with a Keras model and optimizer."""

    def build_model(self, classes: int) -> MaskRCNN:
        if "SM_CHANNEL_WEIGHTS" in os.environ:
            raise DataError(
                "the channel `weights` has PyTorch's state dict, which TensorFlow does not read: leave the channel out,"
                " or train with PyTorch"
            )
        if self.settings.workers:
            raise ValueError("--workers is for PyTorch; TensorFlow's script reads images in the rank: leave it out")
        # Every rank draws the same weights from the seed. The library compares them before the second step.
        keras.utils.set_random_seed(self.settings.seed)
        self.world.set_precision(self.settings.precision, double=self.settings.double)
        model = build(self.settings.model, classes)
        self._detect = tf.function(model.detect, input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
        return model

    def build_updates(self) -> Updates:
        optimizer = build_optimizer(self.settings, self.world, self.model, self.order.parts_per_step)
        return Updates(self.settings, self.world, self.model, optimizer, self.order)

    def loss(self, part: tuple[Any, Any]) -> tf.Tensor:
        seed, images = part
        return sum(
            self.model.losses_of([image for image, _ in images], [target for _, target in images], seed).values()
        )

    def detect(self, image: Any) -> dict[str, Any]:
        output = {name: value.numpy() for name, value in self._detect(image).items()}
        output["masks"] = pasted(output["masks"], output["boxes"], *image.shape[:2])
        return output


def pasted(masks: Any, boxes: Any, height: int, width: int) -> Any:
    """Return masks of 28 x 28 as masks of the image, [n, height, width]: resized to whole pixels of their boxes."""
    result = np.zeros((len(boxes), height, width), np.float32)
    # The sampled mask has a border of half a cell around it, which is not known. One cell of padding stands for it.
    grow = (masks.shape[-1] + 2) / masks.shape[-1]
    for number, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2 * grow
        (left, top), (right, bottom) = (middle - half).astype(int), (middle + half).astype(int)
        shape = max(bottom - top + 1, 1), max(right - left + 1, 1)
        whole = tf.image.resize(np.pad(mask, 1)[..., None], shape).numpy()[..., 0]
        y, x = slice(max(top, 0), min(bottom + 1, height)), slice(max(left, 0), min(right + 1, width))
        result[number, y, x] = whole[y.start - top : y.stop - top, x.start - left : x.stop - left]
    return result


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
