"""The shapes of the parameters of two models."""

from __future__ import annotations

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """Return the shapes of ResNet-50: 161 tensors with 25.6 million numbers."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(depth):
            convolutions: list[Shape] = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if index == 0:
                convolutions.append((4 * width, inputs, 1, 1))
            for shape in convolutions:
                shapes += [shape, (shape[0],), (shape[0],)]
            inputs = 4 * width
    return [*shapes, (1000, inputs), (1000,)]


def bert_large() -> list[Shape]:
    """Return the shapes of BERT-large with its pretraining heads: 398 tensors with 336 million numbers."""
    width, words = 1024, 30522
    shapes: list[Shape] = [(words, width), (512, width), (2, width), (width,), (width,)]
    for _ in range(24):
        shapes += [(width, width), (width,)] * 4 + [(width,), (width,)]
        shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    pooler: list[Shape] = [(width, width), (width,)]
    heads: list[Shape] = [(width, width), (width,), (width,), (width,), (words,), (2, width), (2,)]
    return shapes + pooler + heads


MODELS = {"resnet50": resnet50, "bert-large": bert_large}
