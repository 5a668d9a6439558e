"""Boxes in NumPy: anchors, overlaps, matches, samples and offsets.

Boxes are two corners in pixels, [n, 4]. Rules and constants are those of torchvision's detectors (arXiv 1506.01497,
1703.06870). No gradient flows through a box, so autograd sees none of these arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# A network predicts the logarithm of a ratio of sides; a larger one would overflow.
_LARGEST = math.log(1000 / 16)
_RATIOS = (0.5, 1.0, 2.0)


def anchors(size: int, cells: tuple[int, int], stride: tuple[int, int]) -> Any:
    """Return the anchors of a pyramid level, three per cell: sides of one area with ratios of 1/2, 1 and 2.

    `cells` are the rows and columns of the level; `stride` is a cell's height and width in pixels.
    """
    halves = [(round(size * ratio**-0.5 / 2), round(size * ratio**0.5 / 2)) for ratio in _RATIOS]
    corners = np.array([(-width, -height, width, height) for width, height in halves], float)
    y, x = np.mgrid[: cells[0], : cells[1]] * np.array(stride)[:, None, None]
    middles = np.stack([x, y, x, y], axis=-1)
    return (middles[:, :, None] + corners).reshape(-1, 4)


def overlaps(first: Any, second: Any) -> Any:
    """Return the intersection over union of all pairs of boxes, [first, second]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=2)
    return shared / (_areas(first)[:, None] + _areas(second)[None, :] - shared)


def _areas(boxes: Any) -> Any:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def match(boxes: Any, objects: Any, *, low: float, high: float, every_object: bool) -> Any:
    """Return the number of each box's object, -1 for background, and -2 for boxes between `low` and `high`.

    With `every_object`, the boxes that overlap an object most belong to it, however little they overlap.
    """
    if not len(objects):
        return np.full(len(boxes), -1)
    shares = overlaps(objects, boxes)
    best, number = shares.max(axis=0), shares.argmax(axis=0)
    result = np.where(best >= high, number, np.where(best < low, -1, -2))
    if every_object:
        best_of_object = shares.max(axis=1, keepdims=True)
        result = np.where((shares == best_of_object).any(axis=0), number, result)
    return result


def sample(matches: Any, count: int, share: float, seed: Sequence[int]) -> tuple[Any, Any]:
    """Draw at most `count` boxes. Return the indices of those with an object, and those of the background.

    At most `share` of the count have an object.
    """
    keys = np.random.default_rng(seed).random(len(matches))
    positive = _drawn(matches >= 0, keys, int(count * share))
    return positive, _drawn(matches == -1, keys, count - len(positive))


def _drawn(eligible: Any, keys: Any, limit: int) -> Any:
    """Return the indices of the eligible boxes with the smallest keys, in rising order."""
    indices = np.flatnonzero(eligible)
    return np.sort(indices[np.argsort(keys[indices], kind="stable")[:limit]])


def offsets(boxes: Any, bases: Any, weights: tuple[float, ...] = (1, 1, 1, 1)) -> Any:
    """Return the offsets of boxes from their bases, [n, 4]: what the networks learn."""
    size, base = boxes[:, 2:] - boxes[:, :2], bases[:, 2:] - bases[:, :2]
    moved = (boxes[:, :2] + boxes[:, 2:] - bases[:, :2] - bases[:, 2:]) / (2 * base)
    return np.concatenate([moved, np.log(size / base)], axis=1) * np.array(weights)


def placed(values: Any, bases: Any, weights: tuple[float, ...] = (1, 1, 1, 1)) -> Any:
    """Return the boxes at some offsets from their bases: the inverse of `offsets`."""
    values = values / np.array(weights)
    base = bases[:, 2:] - bases[:, :2]
    middle = bases[:, :2] + base / 2 + values[:, :2] * base
    half = np.exp(np.minimum(values[:, 2:], _LARGEST)) * base / 2
    return np.concatenate([middle - half, middle + half], axis=1)


def clipped(boxes: Any, height: int, width: int) -> Any:
    """Return the parts of boxes that are inside of the image."""
    return np.clip(boxes, 0, [width, height, width, height])


def large(boxes: Any, least: float) -> Any:
    """Return true for the boxes whose sides are at least `least`."""
    return (boxes[:, 2:] - boxes[:, :2] >= least).all(axis=1)
