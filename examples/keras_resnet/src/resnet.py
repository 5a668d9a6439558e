"""ResNets in Keras with the initial weights of large-batch recipes: ResNet-50, and a small one for small images."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def resnet(
    size: int, classes: int, colours: int, *, widths: list[int], depths: list[int], expansion: int, large: bool
) -> keras.Model:
    """Build a ResNet from images, [n, size, size, colours], to logits. `widths` and `depths` list the stages."""
    images = keras.Input((size, size, colours))
    features = normalized(convolution(images, widths[0], 7 if large else 3, 2 if large else 1))
    features = layers.Activation("relu")(features)
    if large:
        features = layers.MaxPooling2D(3, 2, padding="same")(features)
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for index in range(depth):
            features = block(features, width, 2 if index == 0 and stage > 0 else 1, expansion)
    # The loss needs more than the 16 bits in which the other layers may compute.
    kind = keras.config.dtype_policy().variable_dtype
    features = layers.GlobalAveragePooling2D(dtype=kind)(features)
    return keras.Model(images, layers.Dense(classes, dtype=kind)(features))


def block(inputs: keras.KerasTensor, width: int, stride: int, expansion: int) -> keras.KerasTensor:
    """Add two or three convolutions with a residual connection."""
    outputs = width * expansion
    if expansion == 1:
        shapes = [(width, 3, stride), (width, 3, 1)]
    else:
        shapes = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
    features = inputs
    for index, shape in enumerate(shapes):
        if index:
            features = layers.Activation("relu")(features)
        # With a weight of 0 in the last normalisation, a block starts as its shortcut: large rates are stable.
        features = normalized(convolution(features, *shape), gamma="zeros" if index == len(shapes) - 1 else "ones")
    same = stride == 1 and inputs.shape[-1] == outputs
    shortcut = inputs if same else normalized(convolution(inputs, outputs, 1, stride))
    return layers.Activation("relu")(layers.Add()([features, shortcut]))


def convolution(inputs: keras.KerasTensor, outputs: int, size: int, stride: int) -> keras.KerasTensor:
    """Add a convolution without bias, with padding that keeps the size at stride 1, and with He's initial weights."""
    he = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return layers.Conv2D(outputs, size, stride, padding="same", use_bias=False, kernel_initializer=he)(inputs)


def normalized(inputs: keras.KerasTensor, gamma: str = "ones") -> keras.KerasTensor:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma)(inputs)


def resnet50(size: int, classes: int, colours: int) -> keras.Model:
    """Build ResNet-50 with the stride in the 3 x 3 convolutions."""
    return resnet(size, classes, colours, widths=[64, 128, 256, 512], depths=[3, 4, 6, 3], expansion=4, large=True)


def small(size: int, classes: int, colours: int) -> keras.Model:
    """Build a network with two blocks for images of 8 x 8."""
    return resnet(size, classes, colours, widths=[16, 32], depths=[1, 1], expansion=1, large=False)


MODELS: dict[str, Callable[[int, int, int], keras.Model]] = {"resnet50": resnet50, "small": small}
