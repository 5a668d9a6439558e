"""ResNets with the initial weights of large-batch recipes: ResNet-50 for photographs, a small one for small images."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two or three convolutions with a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        else:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for before, after, size, step in shapes:
            layers += [convolution(before, after, size, step), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        # With a weight of 0 in the last normalisation, a block starts as its shortcut: large rates are stable.
        nn.init.zeros_(self.body[-1].weight)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class ResNet(nn.Module):
    """A ResNet for images [n, colours, height, width]. `widths` and `depths` have one entry per stage."""

    def __init__(
        self, classes: int, *, widths: list[int], depths: list[int], expansion: int, colours: int, large: bool
    ) -> None:
        super().__init__()
        channels = widths[0]
        stem = [convolution(colours, channels, 7 if large else 3, 2 if large else 1), nn.BatchNorm2d(channels)]
        stem += [nn.ReLU(inplace=True), *([nn.MaxPool2d(3, 2, 1)] if large else [])]
        blocks: list[nn.Module] = []
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for index in range(depth):
                # Each stage after the first halves the image in its first block.
                stride = 2 if index == 0 and stage > 0 else 1
                blocks.append(Block(channels, width, stride, expansion))
                channels = width * expansion
        self.features = nn.Sequential(*stem, *blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).mean(dim=(2, 3)))


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    """Build a convolution without bias, with padding that keeps the size at stride 1, and with He's initial weights."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def resnet50(classes: int, colours: int) -> ResNet:
    """Build ResNet-50 with the stride in the 3 x 3 convolutions."""
    widths, depths = [64, 128, 256, 512], [3, 4, 6, 3]
    return ResNet(classes, widths=widths, depths=depths, expansion=4, colours=colours, large=True)


def small(classes: int, colours: int) -> ResNet:
    """Build a network with two blocks for images of 8 x 8."""
    return ResNet(classes, widths=[16, 32], depths=[1, 1], expansion=1, colours=colours, large=False)


MODELS = {"resnet50": resnet50, "small": small}
