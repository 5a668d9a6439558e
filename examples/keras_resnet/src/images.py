"""Labelled images for Keras, from a folder per class or from WebDataset's shards.

`common.pictures` finds the images and decodes Netpbm (.pgm, .ppm). TensorFlow decodes all other formats: JPEG, PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common.data import DataError
from common.pictures import Classes, Source, find, netpbm


class Images:
    """Images of one size by number. Pass the training split's `classes` for the test split.

    With `seed`, images are cropped and mirrored at random. The result does not depend on the number of ranks. Raises
    `DataError` with the file's name for data in another format.
    """

    def __init__(self, folder: Path, *, size: int, seed: int | None = None, classes: Classes | None = None) -> None:
        self._sources, self.classes = find(folder, classes)
        self._size, self._seed = size, seed
        self._labels = np.array([source.label for source in self._sources])
        self.colours = decode(self._sources[0]).shape[-1]

    def __len__(self) -> int:
        return len(self._sources)

    def batches(self, numbers: list[int], batch: int, *, epoch: int = 0) -> tf.data.Dataset:
        """Yield images, [n, size, size, colours] in 0..1, and their labels. The last batch may be smaller."""

        def load(number: tf.Tensor) -> tf.Tensor:
            # TensorFlow does not know the shape of a Python function's result.
            [image] = tf.py_function(lambda number: [self._load(int(number), epoch)], [number], [tf.float32])
            image.set_shape([self._size, self._size, self.colours])
            return image, tf.gather(self._labels, number)

        dataset = tf.data.Dataset.from_tensor_slices(np.array(numbers, np.int64))
        return dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)

    def _load(self, number: int, epoch: int) -> tf.Tensor:
        image = decode(self._sources[number])
        if image.shape[-1] != self.colours:
            first = self._sources[0].name
            raise DataError(
                f"{self._sources[number].name} has {image.shape[-1]} colours, but {first} has {self.colours}"
            )
        if self._seed is not None:
            image = augment(image, np.random.default_rng([self._seed, epoch, number]))
        return resize(image, self._size)


def decode(source: Source) -> Any:
    """Return an image as [height, width, colours] in 0..1. Raises `DataError` if it cannot be decoded."""
    content = source.read()
    if (pixels := netpbm(content, source.name)) is not None:
        return pixels
    try:
        return tf.io.decode_image(content, channels=3, expand_animations=False, dtype=tf.float32)
    except tf.errors.InvalidArgumentError as error:
        raise DataError(f"{source.name}: TensorFlow cannot read this image: {error.message}") from None


def augment(image: Any, generator: np.random.Generator) -> Any:
    """Crop a random square, with a side of half to all of the shorter side, and mirror it with probability 1/2."""
    height, width = image.shape[:2]
    share, down, right, mirror = generator.random(4)
    side = max(1, round(min(height, width) * (0.5 + share / 2)))
    top, left = round(down * (height - side)), round(right * (width - side))
    cut = image[top : top + side, left : left + side]
    return cut[:, ::-1] if mirror < 0.5 else cut


def resize(image: Any, size: int) -> tf.Tensor:
    """Scale the shorter side to `size`, and crop the centre."""
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        factor = size / min(height, width)
        shape = max(size, round(height * factor)), max(size, round(width * factor))
        image = tf.image.resize(image, shape, antialias=True)
        top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
        image = image[top : top + size, left : left + size]
    return tf.convert_to_tensor(image, tf.float32)
