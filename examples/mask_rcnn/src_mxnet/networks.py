"""The parts of a Mask R-CNN with weights, in Gluon: ResNet with a feature pyramid, and the heads.

The order of the weights is that of torchvision's state dict.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
from common.for_mxnet.encoder import dense
from mxnet import gluon
from mxnet.gluon import nn

_GROUPS = 32


class GroupNorm(gluon.Block):
    """Normalisation over groups of channels. Gluon's own has a factor per group; this one has a factor per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        with self.name_scope():
            self.gamma = self.params.get("gamma", shape=(channels,), init="ones")
            self.beta = self.params.get("beta", shape=(channels,), init="zeros")

    def forward(self, features: Any) -> Any:
        same = {"ctx": features.context, "dtype": features.dtype}
        ones, zeros = mx.nd.ones(_GROUPS, **same), mx.nd.zeros(_GROUPS, **same)
        normal = mx.nd.GroupNorm(features, ones, zeros, num_groups=_GROUPS, eps=1e-5)
        gamma, beta = (weight.data().reshape((1, -1, 1, 1)) for weight in (self.gamma, self.beta))
        return mx.nd.broadcast_add(mx.nd.broadcast_mul(normal, gamma), beta)


class Residual(gluon.Block):
    """Two or three convolutions with a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        if expansion > 1:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        with self.name_scope():
            self.body, self.shortcut = nn.Sequential(), nn.Sequential()
            for index, shape in enumerate(shapes):
                if index:
                    self.body.add(nn.Activation("relu"))
                self.body.add(convolution(*shape), GroupNorm(shape[1]))
            if stride != 1 or inputs != outputs:
                self.shortcut.add(convolution(inputs, outputs, 1, stride), GroupNorm(outputs))

    def forward(self, features: Any) -> Any:
        return mx.nd.relu(self.body(features) + self.shortcut(features))


class Pyramid(gluon.Block):
    """A ResNet with one stage per depth and its feature pyramid (arXiv 1612.03144).

    The input is [n, 3, height, width], with sides that the coarsest stage divides. Outputs are [n, width, height / s,
    width / s] for strides s of 4, 8, ..., and once more half of the last one. GroupNorm replaces BatchNorm, whose
    statistics of one or two images would be noise.
    """

    def __init__(self, depths: tuple[int, ...], *, expansion: int, width: int) -> None:
        super().__init__()
        with self.name_scope():
            self.stem, self.stages = nn.Sequential(), nn.Sequential()
            self.laterals, self.outputs = nn.Sequential(), nn.Sequential()
            self.stem.add(convolution(3, 64, 7, 2), GroupNorm(64), nn.Activation("relu"), nn.MaxPool2D(3, 2, 1))
            channels = 64
            for number, depth in enumerate(depths):
                stage = nn.Sequential()
                for index in range(depth):
                    stride = 2 if index == 0 and number else 1
                    stage.add(Residual(channels, 64 * 2**number, stride, expansion))
                    channels = 64 * 2**number * expansion
                self.stages.add(stage)
                self.laterals.add(nn.Conv2D(width, 1, in_channels=channels, weight_initializer=_bounded()))
                self.outputs.add(nn.Conv2D(width, 3, padding=1, in_channels=width, weight_initializer=_bounded()))

    def forward(self, images: Any) -> list[Any]:
        features, stages = self.stem(images), []
        for stage in self.stages:
            features = stage(features)
            stages.append(features)
        merged, levels = None, []
        for features, lateral, output in reversed(list(zip(stages, self.laterals, self.outputs, strict=True))):
            side = lateral(features)
            merged = side if merged is None else side + mx.nd.UpSampling(merged, scale=2, sample_type="nearest")
            levels.insert(0, output(merged))
        return [*levels, levels[-1][:, :, ::2, ::2]]


class RegionHead(gluon.Block):
    """Scores the anchors of each pyramid level, and offsets them: [n, anchors] and [n, anchors, 4] of all levels."""

    def __init__(self, width: int, anchors: int) -> None:
        super().__init__()
        start = mx.init.Normal(0.01)
        with self.name_scope():
            self.hidden = nn.Conv2D(width, 3, padding=1, activation="relu", in_channels=width, weight_initializer=start)
            self.scores, self.offsets = (
                nn.Conv2D(anchors * count, 1, in_channels=width, weight_initializer=start) for count in (1, 4)
            )

    def forward(self, levels: list[Any]) -> tuple[Any, Any]:
        scores, offsets = [], []
        for level in levels:
            hidden = self.hidden(level)
            # The anchors of a cell are next to each other.
            scores.append(self.scores(hidden).transpose((0, 2, 3, 1)).reshape((0, -1)))
            offsets.append(self.offsets(hidden).transpose((0, 2, 3, 1)).reshape((0, -1, 4)))
        return mx.nd.concat(*scores, dim=1), mx.nd.concat(*offsets, dim=1)


class BoxHead(gluon.Block):
    """Scores, [n, classes], and offsets, [n, classes, 4], from 7 x 7 cells of each box."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self._classes = classes
        with self.name_scope():
            self.first, self.second = dense(width * 7**2, hidden), dense(hidden, hidden)
            self.scores, self.offsets = dense(hidden, classes), dense(hidden, classes * 4)

    def forward(self, cells: Any) -> tuple[Any, Any]:
        features = mx.nd.relu(self.first(cells.reshape((0, -1))))
        features = mx.nd.relu(self.second(features))
        return self.scores(features), self.offsets(features).reshape((0, self._classes, 4))


def mask_head(width: int, depth: int, classes: int) -> nn.Sequential:
    """Build the head for 14 x 14 cells of each box: scores of masks, [n, classes, 28, 28]."""
    head = nn.Sequential()
    with head.name_scope():
        for _ in range(depth):
            head.add(nn.Conv2D(width, 3, padding=1, activation="relu", in_channels=width, weight_initializer=_he()))
        head.add(nn.Conv2DTranspose(width, 2, 2, activation="relu", in_channels=width, weight_initializer=_he()))
        head.add(nn.Conv2D(classes, 1, in_channels=width, weight_initializer=_he()))
    return head


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2D:
    """Build a convolution without bias that keeps the height and width but for the stride."""
    return nn.Conv2D(outputs, size, stride, size // 2, use_bias=False, in_channels=inputs, weight_initializer=_he())


def _he() -> mx.init.Initializer:
    """Return Kaiming's normal initial weights for the outputs of a layer."""
    return mx.init.Xavier("gaussian", "out", 2)


def _bounded() -> mx.init.Initializer:
    """Return Kaiming's uniform initial weights with a gain of 1: torch's for these layers."""
    return mx.init.Xavier("uniform", "in", 3)
