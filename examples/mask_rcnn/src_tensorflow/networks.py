"""The parts of a Mask R-CNN with weights, in Keras: ResNet with a feature pyramid, and the heads."""

from __future__ import annotations

import keras
from keras import layers


def pyramid(depths: list[int], *, expansion: int, width: int) -> keras.Model:
    """Build a ResNet with one stage per depth and its feature pyramid (arXiv 1612.03144).

    Input: [n, height, width, 3], with sides that the coarsest stage divides. Outputs: [n, height / s, width / s, width]
    for strides s of 4, 8, ..., and once more half of the last one. GroupNorm replaces BatchNorm, whose statistics of
    one or two images would be noise.
    """
    images = keras.Input((None, None, 3))
    features = layers.Activation("relu")(normalized(convolution(images, 64, 7, 2)))
    # torch pads with nothing that could be a maximum, and by one pixel on both sides.
    features = layers.ZeroPadding2D(1)(features)
    features = layers.MaxPooling2D(3, 2)(features)
    stages = []
    for stage, depth in enumerate(depths):
        for index in range(depth):
            features = block(features, 64 * 2**stage, 2 if index == 0 and stage else 1, expansion)
        stages.append(features)
    merged, outputs = None, []
    for features in reversed(stages):
        lateral = layers.Conv2D(width, 1, kernel_initializer=_bounded())(features)
        merged = lateral if merged is None else layers.Add()([lateral, layers.UpSampling2D(2)(merged)])
        outputs.insert(0, layers.Conv2D(width, 3, padding="same", kernel_initializer=_bounded())(merged))
    outputs.append(layers.MaxPooling2D(1, 2)(outputs[-1]))
    return keras.Model(images, [layers.Activation("linear", dtype=_wide())(output) for output in outputs])


def block(inputs: keras.KerasTensor, width: int, stride: int, expansion: int) -> keras.KerasTensor:
    """Add two or three convolutions with a residual connection."""
    outputs = width * expansion
    shapes = [(width, 3, stride), (width, 3, 1)]
    if expansion > 1:
        shapes = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
    features = inputs
    for index, shape in enumerate(shapes):
        if index:
            features = layers.Activation("relu")(features)
        features = normalized(convolution(features, *shape))
    same = stride == 1 and inputs.shape[-1] == outputs
    shortcut = inputs if same else normalized(convolution(inputs, outputs, 1, stride))
    return layers.Activation("relu")(layers.Add()([features, shortcut]))


def convolution(inputs: keras.KerasTensor, outputs: int, size: int, stride: int) -> keras.KerasTensor:
    """Add a convolution without bias. Padding is the same on both sides, as in torch."""
    padded = layers.ZeroPadding2D(size // 2)(inputs) if size > 1 else inputs
    return layers.Conv2D(outputs, size, stride, use_bias=False, kernel_initializer=_he())(padded)


def normalized(inputs: keras.KerasTensor) -> keras.KerasTensor:
    return layers.GroupNormalization(32, epsilon=1e-5)(inputs)


def region_head(width: int, anchors: int) -> keras.Model:
    """Build the head that scores the anchors of a pyramid level, and offsets them: [n, h, w, anchors x 1 and x 4]."""
    features = keras.Input((None, None, width))
    hidden = layers.Conv2D(width, 3, padding="same", activation="relu", kernel_initializer=_narrow())(features)
    outputs = (layers.Conv2D(anchors * count, 1, kernel_initializer=_narrow(), dtype=_wide()) for count in (1, 4))
    return keras.Model(features, [layer(hidden) for layer in outputs])


def box_head(width: int, hidden: int, classes: int) -> keras.Model:
    """Build the head for 7 x 7 cells of each box: scores, [n, classes], and offsets, [n, classes x 4]."""
    cells = keras.Input((7, 7, width))
    features = layers.Flatten()(cells)
    for _ in range(2):
        features = layers.Dense(hidden, activation="relu", kernel_initializer=_bounded(1 / 3))(features)
    outputs = (layers.Dense(classes * count, kernel_initializer=_bounded(1 / 3), dtype=_wide()) for count in (1, 4))
    return keras.Model(cells, [layer(features) for layer in outputs])


def mask_head(width: int, depth: int, classes: int) -> keras.Model:
    """Build the head for 14 x 14 cells of each box: scores of masks, [n, 28, 28, classes]."""
    cells = features = keras.Input((14, 14, width))
    for _ in range(depth):
        features = layers.Conv2D(width, 3, padding="same", activation="relu", kernel_initializer=_he())(features)
    features = layers.Conv2DTranspose(width, 2, 2, activation="relu", kernel_initializer=_he())(features)
    return keras.Model(cells, layers.Conv2D(classes, 1, kernel_initializer=_he(), dtype=_wide())(features))


# Each layer has an initializer of its own: an object draws the same values whenever it is called.


def _he() -> keras.initializers.Initializer:
    """Return Kaiming's normal initial weights for the outputs of a layer."""
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def _narrow() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.01)


def _bounded(gain: float = 1.0) -> keras.initializers.Initializer:
    """Return Kaiming's uniform initial weights. torch's squared gain is 1 in a pyramid, and 1/3 in dense layers."""
    return keras.initializers.VarianceScaling(gain, "fan_in", "uniform")


def _wide() -> str:
    """Return the type of the weights, fp32 or fp64: losses and boxes are computed in it under a mixed policy, too."""
    return keras.config.dtype_policy().variable_dtype
