"""Train a Mask R-CNN in TensorFlow on images in COCO's format, on any number of ranks."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf
from common.for_tensorflow import world
from common.for_tensorflow.updates import Updates, build_optimizer
from common.loop import run
from models import MaskRCNN, build
from pasting import pasted
from task import Task, parse


class Training(Task):
    """The task with a Keras model and optimizer."""

    def build_model(self, classes: int) -> MaskRCNN:
        self.refuse_settings_of_torch("TensorFlow")
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


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
