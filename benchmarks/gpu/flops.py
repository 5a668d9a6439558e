"""Count the arithmetic of a training step, and the part of a device's peak that a speed reaches. Pure.

    encoder_flops(BERT_LARGE, length=512)           # of one sample: forward and backward
    mfu(samples_per_second=100.0, flops_per_sample=1.1e12, peak=989e12)

A multiplication and an addition count as two. Only matrix products and convolutions count, as in published figures. The
backward has twice the arithmetic of the forward. Source: Chowdhery et al. 2022, "PaLM", appendix B.
"""

from __future__ import annotations

from typing import NamedTuple

_FORWARD_AND_BACKWARD = 3
_COLOURS, _CLASSES, _EXPANSION = 3, 1000, 4


class Encoder(NamedTuple):
    """The sizes of a BERT with a head that predicts words."""

    layers: int
    width: int
    feed_forward: int
    words: int


class ResNet(NamedTuple):
    """The sizes of a ResNet of bottlenecks, with the stride in the 3 x 3 convolutions."""

    width: int
    depths: tuple[int, ...]


BERT_LARGE = Encoder(24, 1024, 4096, 30_522)
RESNET50 = ResNet(64, (3, 4, 6, 3))


def encoder_flops(encoder: Encoder, length: int) -> float:
    """Return the operations of a training step per sample of `length` tokens.

    >>> encoder_flops(Encoder(layers=1, width=2, feed_forward=3, words=5), length=4)
    1392.0
    """
    products = 4 * encoder.width**2 + 2 * encoder.width * encoder.feed_forward
    scores = 2 * length * encoder.width
    head = encoder.width**2 + encoder.width * encoder.words
    return _FORWARD_AND_BACKWARD * 2.0 * length * (encoder.layers * (products + scores) + head)


def resnet_flops(resnet: ResNet, side: int) -> float:
    """Return the operations of a training step per image of `side` x `side` pixels.

    >>> round(resnet_flops(RESNET50, 224) / 1e9, 2)
    24.54
    """
    side = _halved(side)
    sums = 7 * 7 * _COLOURS * resnet.width * side**2
    side = _halved(side)
    inputs = resnet.width
    for stage, blocks in enumerate(resnet.depths):
        width = resnet.width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            outside, side = side, _halved(side) if stride == 2 else side
            sums += inputs * width * outside**2 + (9 * width**2 + width * _EXPANSION * width) * side**2
            if stride == 2 or inputs != _EXPANSION * width:
                sums += inputs * _EXPANSION * width * side**2
            inputs = _EXPANSION * width
    return _FORWARD_AND_BACKWARD * 2.0 * (sums + inputs * _CLASSES)


def mfu(*, samples_per_second: float, flops_per_sample: float, peak: float | None) -> float | None:
    """Return the part of the peak that a speed reaches; None for a device whose peak is not known.

    >>> mfu(samples_per_second=100.0, flops_per_sample=2e12, peak=1e15)
    0.2
    """
    return None if peak is None else samples_per_second * flops_per_sample / peak


def _halved(side: int) -> int:
    """Return the side after a stride of 2 with the padding of ResNet's layers."""
    return (side + 1) // 2
