"""Boxes in TensorFlow: overlaps, matches, samples, offsets and pooled features.

Boxes are two corners in pixels, [n, 4]. Rules and constants are those of torchvision's detectors (arXiv 1506.01497,
1703.06870).
"""

from __future__ import annotations

import math

import tensorflow as tf

# A network predicts the logarithm of a ratio of sides; a larger one would overflow.
_LARGEST = math.log(1000 / 16)


def overlaps(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return the intersection over union of all pairs of boxes, [first, second]."""
    low = tf.maximum(first[:, None, :2], second[None, :, :2])
    high = tf.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = tf.reduce_prod(tf.maximum(high - low, 0), axis=2)
    return shared / (_areas(first)[:, None] + _areas(second)[None, :] - shared)


def _areas(boxes: tf.Tensor) -> tf.Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def match(boxes: tf.Tensor, objects: tf.Tensor, *, low: float, high: float, every_object: bool) -> tf.Tensor:
    """Return the number of each box's object, -1 for background, and -2 for boxes between `low` and `high`.

    With `every_object`, the boxes that overlap an object most belong to it, however little they overlap.
    """
    shares = overlaps(objects, boxes)

    def matched() -> tf.Tensor:
        best = tf.reduce_max(shares, axis=0)
        number = tf.argmax(shares, axis=0, output_type=tf.int32)
        result = tf.where(best >= high, number, tf.where(best < low, -1, -2))
        if every_object:
            best_of_object = tf.reduce_max(shares, axis=1, keepdims=True)
            result = tf.where(tf.reduce_any(shares == best_of_object, axis=0), number, result)
        return result

    # The maximum over no object would be the lowest number, with the index 0.
    return tf.cond(tf.shape(objects)[0] > 0, matched, lambda: tf.fill([tf.shape(boxes)[0]], -1))


def sample(matches: tf.Tensor, count: int, share: float, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draw at most `count` boxes. Return the indices of those with an object, and those of the background.

    At most `share` of the count have an object.
    """
    keys = tf.random.stateless_uniform(tf.shape(matches), seed)
    positive = _drawn(matches >= 0, keys, tf.constant(int(count * share)))
    return positive, _drawn(matches == -1, keys, count - tf.size(positive))


def _drawn(eligible: tf.Tensor, keys: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Return the indices of the eligible boxes with the smallest keys, in rising order."""
    indices = tf.cast(tf.where(eligible)[:, 0], tf.int32)
    chosen = tf.argsort(tf.gather(keys, indices), stable=True)[:limit]
    return tf.sort(tf.gather(indices, chosen))


def offsets(boxes: tf.Tensor, bases: tf.Tensor, weights: tuple[float, ...] = (1, 1, 1, 1)) -> tf.Tensor:
    """Return the offsets of boxes from their bases, [n, 4]: what the networks learn."""
    size, base = boxes[:, 2:] - boxes[:, :2], bases[:, 2:] - bases[:, :2]
    moved = (boxes[:, :2] + boxes[:, 2:] - bases[:, :2] - bases[:, 2:]) / (2 * base)
    return tf.concat([moved, tf.math.log(size / base)], axis=1) * tf.constant(weights, boxes.dtype)


def placed(values: tf.Tensor, bases: tf.Tensor, weights: tuple[float, ...] = (1, 1, 1, 1)) -> tf.Tensor:
    """Return the boxes at some offsets from their bases: the inverse of `offsets`."""
    values = values / tf.constant(weights, values.dtype)
    base = bases[:, 2:] - bases[:, :2]
    middle = bases[:, :2] + base / 2 + values[:, :2] * base
    half = tf.exp(tf.minimum(values[:, 2:], tf.cast(_LARGEST, values.dtype))) * base / 2
    return tf.concat([middle - half, middle + half], axis=1)


def clipped(boxes: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return the parts of boxes that are inside of the image."""
    limits = tf.cast(tf.stack([width, height, width, height]), boxes.dtype)
    return tf.clip_by_value(boxes, tf.zeros_like(limits), limits)


def large(boxes: tf.Tensor, least: float) -> tf.Tensor:
    """Return the indices of the boxes whose sides are at least `least`."""
    return tf.where(tf.reduce_all(boxes[:, 2:] - boxes[:, :2] >= least, axis=1))[:, 0]


def best_of(boxes: tf.Tensor, scores: tf.Tensor, groups: tf.Tensor, limit: int, threshold: float) -> tf.Tensor:
    """Return the indices of at most `limit` boxes, the highest score first.

    A box is left out if it overlaps a better one of the same group by more than `threshold`.
    """
    boxes, scores = tf.cast(boxes, tf.float32), tf.cast(scores, tf.float32)
    # Boxes of different groups do not overlap where each group has a region of its own.
    shift = tf.cast(groups, tf.float32)[:, None] * (tf.reduce_max(boxes) + 1)
    return tf.image.non_max_suppression(boxes + shift, scores, limit, threshold)


def pooled(features: tf.Tensor, boxes: tf.Tensor, images: tf.Tensor, scale: tf.Tensor, size: int) -> tf.Tensor:
    """Return the mean of 2 x 2 bilinear samples in each cell of each box, [n, size, size, channels] (RoIAlign).

    `features` are [images, height, width, channels]; `images` are the numbers of the boxes' images; `scale` converts
    pixels to cells of `features`.
    """
    corners = boxes * tf.cast(scale, boxes.dtype)
    sides = tf.maximum(corners[:, 2:] - corners[:, :2], 1)
    steps = (tf.range(2 * size, dtype=boxes.dtype) + 0.5) / (2 * size)
    points = [corners[:, axis, None] + sides[:, axis, None] * steps for axis in (1, 0)]
    shape = tf.shape(features)
    (up, down, vertical, inside_y), (left, right, horizontal, inside_x) = (
        _neighbours(values, shape[axis]) for axis, values in enumerate(points, 1)
    )
    flat = tf.reshape(features, [-1, features.shape[-1]])
    start = (tf.cast(images, tf.int32) * shape[1])[:, None]

    def row(y: tf.Tensor) -> tf.Tensor:
        """Return one row of samples per y, interpolated between its neighbours in x."""
        places = [((start + y) * shape[2])[:, :, None] + x[:, None, :] for x in (left, right)]
        share = tf.cast(horizontal, features.dtype)[:, None, :, None]
        return tf.gather(flat, places[0]) * (1 - share) + tf.gather(flat, places[1]) * share

    share = tf.cast(vertical, features.dtype)[:, :, None, None]
    samples = row(up) * (1 - share) + row(down) * share
    samples *= tf.cast(inside_y[:, :, None] & inside_x[:, None, :], features.dtype)[..., None]
    cells = tf.reshape(samples, [-1, size, 2, size, 2, features.shape[-1]])
    return tf.reduce_mean(cells, axis=[2, 4])


def _neighbours(points: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the cells before and after each point, the share of the later one, and whether the point counts.

    Up to one cell outside of the image, a point has the value of the border. Farther outside it counts 0.
    """
    inside = (points >= -1) & (points <= tf.cast(size, points.dtype))
    points = tf.clip_by_value(points, 0, tf.cast(size - 1, points.dtype))
    before = tf.cast(tf.floor(points), tf.int32)
    return before, tf.minimum(before + 1, size - 1), points - tf.cast(before, points.dtype), inside


def smooth(difference: tf.Tensor, beta: float = 1 / 9) -> tf.Tensor:
    """Return the sum of the smooth L1 losses: squares below `beta`, absolute values above."""
    size = tf.abs(difference)
    return tf.reduce_sum(tf.where(size < beta, size**2 / (2 * beta), size - beta / 2))
