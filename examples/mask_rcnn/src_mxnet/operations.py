"""MXNet's operations on boxes and scores, with the arguments that make them those of torchvision."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


def best_of(boxes: Any, scores: Any, groups: Any, limit: int, threshold: float) -> Any:
    """Return the indices of at most `limit` boxes in NumPy, the highest score first.

    A box is left out if it overlaps a better one of the same group by more than `threshold`.
    """
    # MXNet has no arrays without elements.
    if not len(boxes):
        return np.zeros(0, int)
    rows = np.column_stack([groups, scores, boxes, np.arange(len(boxes))])
    kept = mx.nd.contrib.box_nms(
        mx.nd.array(rows, dtype="float64"), overlap_thresh=threshold, valid_thresh=-np.inf, id_index=0
    ).asnumpy()
    # The operator sorts the boxes, and fills the rows of those that it leaves out with -1.
    return kept[kept[:, 0] >= 0][:limit, -1].astype(int)


def pooled(features: Any, regions: Any, size: int, *, scale: float, samples: int) -> Any:
    """Return the mean of bilinear samples in each cell of each region, [n, channels, size, size] (RoIAlign).

    `regions` are the number of an image and a box in pixels, [n, 5]; `scale` converts pixels to cells of `features`. A
    cell has `samples` x `samples` samples, and one per pixel if `samples` is -1.
    """
    return mx.nd.contrib.ROIAlign(
        features, regions, pooled_size=(size, size), spatial_scale=scale, sample_ratio=samples
    )


def cross_entropy(scores: Any, right: Any) -> Any:
    """Return the cross entropy of each score, before the sigmoid, with what is right in 0..1."""
    return mx.nd.relu(scores) - scores * right + mx.nd.Activation(-mx.nd.abs(scores), act_type="softrelu")


def smooth(difference: Any) -> Any:
    """Return the sum of the smooth L1 losses of each row: squares below 1/9, absolute values above."""
    # The operator's scalar is the root of the inverse of the limit.
    return mx.nd.smooth_l1(difference, scalar=3.0).sum(axis=1)
