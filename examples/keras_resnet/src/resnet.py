"""ResNets as large-batch recipes have them, in Keras: ResNet-50 for photographs, a small one for small images."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def resnet(
    size: int, classes: int, colours: int, *, widths: list[int], depths: list[int], expansion: int, large: bool
) -> keras.Model:
    """`widths` and `depths` are of the stages; images are [n, size, size, colours], outputs logits."""
    images = keras.Input((size, size, colours))
    found = normalized(convolution(images, widths[0], 7 if large else 3, 2 if large else 1))
    found = layers.Activation("relu")(found)
    if large:
        found = layers.MaxPooling2D(3, 2, padding="same")(found)
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for place in range(depth):
            found = block(found, width, 2 if place == 0 and stage > 0 else 1, expansion)
    found = layers.GlobalAveragePooling2D(dtype="float32")(found)
    return keras.Model(images, layers.Dense(classes, dtype="float32")(found))


def block(inputs: keras.KerasTensor, width: int, stride: int, expansion: int) -> keras.KerasTensor:
    """Two or three convolutions beside a short cut; the last normalisation starts at 0: at first a block is none."""
    outputs = width * expansion
    if expansion == 1:
        shapes = [(width, 3, stride), (width, 3, 1)]
    else:
        shapes = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
    found = inputs
    for place, shape in enumerate(shapes):
        if place:
            found = layers.Activation("relu")(found)
        found = normalized(convolution(found, *shape), gamma="zeros" if place == len(shapes) - 1 else "ones")
    same = stride == 1 and inputs.shape[-1] == outputs
    shortcut = inputs if same else normalized(convolution(inputs, outputs, 1, stride))
    return layers.Activation("relu")(layers.Add()([found, shortcut]))


def convolution(inputs: keras.KerasTensor, outputs: int, size: int, stride: int) -> keras.KerasTensor:
    """A convolution as ResNets have them: no bias, the image kept whole, weights after He."""
    he = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return layers.Conv2D(outputs, size, stride, padding="same", use_bias=False, kernel_initializer=he)(inputs)


def normalized(inputs: keras.KerasTensor, gamma: str = "ones") -> keras.KerasTensor:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma)(inputs)


def resnet50(size: int, classes: int, colours: int) -> keras.Model:
    """ResNet-50 with its stride in the 3 x 3 convolutions."""
    return resnet(size, classes, colours, widths=[64, 128, 256, 512], depths=[3, 4, 6, 3], expansion=4, large=True)


def small(size: int, classes: int, colours: int) -> keras.Model:
    """Five layers for images of 8 x 8."""
    return resnet(size, classes, colours, widths=[16, 32], depths=[1, 1], expansion=1, large=False)


MODELS: dict[str, Callable[[int, int, int], keras.Model]] = {"resnet50": resnet50, "small": small}
