"""Puts the masks of a model, 28 x 28 in each box, into the image."""

from __future__ import annotations

from typing import Any

import numpy as np


def pasted(masks: Any, boxes: Any, height: int, width: int) -> Any:
    """Return masks, [n, size, size] in 0..1, as masks of the image, [n, height, width].

    A mask is resized to the whole pixels of its box, as in torchvision.
    """
    result = np.zeros((len(boxes), height, width), np.float32)
    # The sampled mask has a border of half a cell around it, which is not known. One cell of padding stands for it.
    grow = (masks.shape[-1] + 2) / masks.shape[-1]
    for number, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2 * grow
        (left, top), (right, bottom) = (middle - half).astype(int), (middle + half).astype(int)
        whole = resized(np.pad(mask, 1), max(bottom - top + 1, 1), max(right - left + 1, 1))
        y, x = slice(max(top, 0), min(bottom + 1, height)), slice(max(left, 0), min(right + 1, width))
        result[number, y, x] = whole[y.start - top : y.stop - top, x.start - left : x.stop - left]
    return result


def resized(mask: Any, height: int, width: int) -> Any:
    """Return bilinear samples of a mask at the middles of `height` x `width` pixels."""
    for size in (height, width):
        # The first pass samples the rows, and the transpose makes the columns the rows of the second pass.
        points = np.clip((np.arange(size) + 0.5) * len(mask) / size - 0.5, 0, len(mask) - 1)
        before = np.floor(points).astype(int)
        share = (points - before)[:, None]
        mask = (mask[before] * (1 - share) + mask[np.minimum(before + 1, len(mask) - 1)] * share).T
    return mask
