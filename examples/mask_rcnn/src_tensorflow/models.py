"""Mask R-CNN in TensorFlow with torchvision's settings: the full model, and a small one for images of 64 x 64.

    image -> pyramid -> region head: anchors -> proposals -> box head: classes and boxes -> mask head: masks

Source: He et al., arXiv 1703.06870.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import boxes as geometry
import keras
import networks
import tensorflow as tf
from sizes import SIZES, Sizes

# Weights of the offsets of the box head, as in torchvision.
_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
# Seeds of the draws in one image: the part's seed, and one of these numbers per image.
_REGIONS, _BOXES = 0, 1


@dataclass
class Scaled:
    """A batch of images, resized and padded, the size of each one without padding, and the factors of its sides."""

    images: Any
    sizes: list[Any] = field(default_factory=list)
    factors: list[Any] = field(default_factory=list)


class MaskRCNN(keras.Model):
    """The model for `classes` classes, not counting the background.

    losses = model.losses_of(images, targets, seed)    # a dict of five scalars
    output = model.detect(image)                       # boxes [n, 4], labels, scores [n], masks [n, height, width]
    """

    def __init__(self, sizes: Sizes, classes: int) -> None:
        super().__init__()
        self.sizes, self.classes = sizes, classes + 1
        self.pyramid = networks.pyramid(list(sizes.depths), expansion=sizes.expansion, width=sizes.width)
        self.regions = networks.region_head(sizes.width, 3)
        self.box_head = networks.box_head(sizes.width, sizes.hidden, self.classes)
        self.mask_head = networks.mask_head(sizes.width, sizes.mask_depth, self.classes)
        self.kind = keras.config.dtype_policy().variable_dtype
        self.built = True

    def losses_of(self, images: list[Any], targets: list[dict[str, Any]], seed: Any) -> dict[str, tf.Tensor]:
        """Return the mean losses of the images by name. `seed` decides which boxes the model learns from."""
        scaled = self._scaled(images)
        levels, anchors, scores, moves = self._regions_of(scaled.images)
        totals = dict.fromkeys(("objectness", "rpn_box_reg"), tf.zeros((), self.kind))
        drawn, count = [], 0
        for number, target in enumerate(targets):
            objects = tf.cast(target["boxes"], self.kind) * scaled.factors[number]
            keys = [tf.stack([tf.cast(seed, tf.int64), 2 * number + kind]) for kind in (_REGIONS, _BOXES)]
            objectness, offsets, sampled = self._region_losses(anchors, scores[number], moves[number], objects, keys[0])
            totals["objectness"] += objectness
            totals["rpn_box_reg"] += offsets
            count += sampled
            proposals = self._proposals(anchors, scores[number], moves[number], scaled.sizes[number], training=True)
            drawn.append(self._drawn(proposals, objects, target["labels"], keys[1]))
        # The mean over all samples of all images, as in torchvision.
        totals = {f"loss_{name}": total / tf.cast(count, self.kind) for name, total in totals.items()}
        return totals | self._box_losses(levels, drawn) | self._mask_loss(levels, drawn, targets, scaled)

    def detect(self, image: Any) -> dict[str, tf.Tensor]:
        """Return the objects of an image, the highest score first."""
        scaled = self._scaled([image])
        levels, anchors, scores, moves = self._regions_of(scaled.images)
        boxes = self._proposals(anchors, scores[0], moves[0], scaled.sizes[0], training=False)
        logits, offsets = self.box_head(self._pooled(levels, boxes, tf.zeros(tf.shape(boxes)[0], tf.int32), 7))
        shares = tf.nn.softmax(logits)[:, 1:]
        # One box per class; the background has none.
        bases = tf.repeat(boxes, self.classes - 1, axis=0)
        moved = tf.reshape(tf.reshape(offsets, [-1, self.classes, 4])[:, 1:], [-1, 4])
        moved = geometry.clipped(geometry.placed(moved, bases, _WEIGHTS), *scaled.sizes[0])
        labels, rated = tf.tile(tf.range(1, self.classes), [tf.shape(boxes)[0]]), tf.reshape(shares, [-1])
        eligible = tf.where((rated > 0.05) & tf.reduce_all(moved[:, 2:] - moved[:, :2] >= 0.01, axis=1))[:, 0]
        moved, labels, rated = (tf.gather(values, eligible) for values in (moved, labels, rated))
        kept = geometry.best_of(moved, rated, labels, self.sizes.detections, 0.5)
        moved, labels, rated = (tf.gather(values, kept) for values in (moved, labels, rated))
        scores = self.mask_head(self._pooled(levels, moved, tf.zeros_like(labels), 14))
        masks = tf.sigmoid(tf.gather(tf.transpose(scores, [0, 3, 1, 2]), labels, batch_dims=1))
        return {"boxes": moved / scaled.factors[0], "labels": labels, "scores": rated, "masks": masks}

    def _scaled(self, images: list[Any]) -> Scaled:
        """Resize images, and pad them on the right and below to one size, a multiple of 32."""
        resized = []
        scaled = Scaled(None)
        for image in images:
            pixels = tf.cast(image, self.kind) / 255
            pixels = (pixels - tf.constant(self.sizes.mean, self.kind)) / tf.constant(self.sizes.deviation, self.kind)
            sides = tf.cast(tf.shape(pixels)[:2], tf.float64)
            factor = tf.minimum(self.sizes.shorter / tf.reduce_min(sides), self.sizes.longer / tf.reduce_max(sides))
            size = tf.cast(tf.floor(sides * factor), tf.int32)
            resized.append(tf.cast(tf.image.resize(pixels, size), self.kind))
            scaled.sizes.append((size[0], size[1]))
            ratio = tf.cast(size, tf.float64) / sides
            scaled.factors.append(tf.cast(tf.stack([ratio[1], ratio[0], ratio[1], ratio[0]]), self.kind))
        height, width = (-(-tf.reduce_max([size[axis] for size in scaled.sizes]) // 32) * 32 for axis in (0, 1))
        padded = [tf.image.pad_to_bounding_box(pixels, 0, 0, height, width) for pixels in resized]
        scaled.images = tf.ensure_shape(tf.stack(padded), [None, None, None, 3])
        return scaled

    def _regions_of(self, images: tf.Tensor) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Return the pyramid, the anchors of each level, and per image the scores and offsets of each level."""
        levels = self.pyramid(images)
        anchors, scores, moves = [], [], []
        for size, level in zip(self.sizes.anchors, levels, strict=True):
            anchors.append(self._anchors(size, level, images))
            objectness, offsets = self.regions(level)
            count = tf.shape(images)[0]
            scores.append(tf.reshape(objectness, [count, -1]))
            moves.append(tf.reshape(offsets, [count, -1, 4]))
        numbers = range(images.shape[0])
        return (
            levels,
            anchors,
            [[level[image] for level in scores] for image in numbers],
            [[level[image] for level in moves] for image in numbers],
        )

    def _anchors(self, size: int, level: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Return the anchors of a level, three per cell: sides of one area with ratios of 1/2, 1 and 2."""
        shape = tf.shape(level)[1:3]
        stride = tf.cast(tf.shape(images)[1:3] // shape, self.kind)
        y, x = (tf.cast(tf.range(shape[axis]), self.kind) * stride[axis] for axis in (0, 1))
        x, y = tf.meshgrid(x, y)
        corners = []
        for ratio in (0.5, 1.0, 2.0):
            width, height = round(size * ratio**-0.5 / 2), round(size * ratio**0.5 / 2)
            corners.append((-width, -height, width, height))
        middles = tf.reshape(tf.stack([x, y, x, y], axis=-1), [-1, 1, 4])
        return tf.reshape(middles + tf.constant(corners, self.kind), [-1, 4])

    def _region_losses(
        self, anchors: list[Any], scores: list[Any], moves: list[Any], objects: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the sums of both losses of an image's anchors, and the number of sampled anchors."""
        bases, score, move = tf.concat(anchors, 0), tf.concat(scores, 0), tf.concat(moves, 0)
        matches = geometry.match(bases, objects, low=0.3, high=0.7, every_object=True)
        positive, negative = geometry.sample(matches, self.sizes.region_samples, 0.5, seed)
        both = tf.concat([positive, negative], 0)
        labels = tf.cast(tf.gather(matches, both) >= 0, self.kind)
        objectness = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.gather(score, both)))
        targets = tf.gather(objects, tf.gather(matches, positive))
        offsets = geometry.offsets(targets, tf.gather(bases, positive))
        return objectness, geometry.smooth(tf.gather(move, positive) - offsets), tf.size(both)

    def _proposals(
        self, anchors: list[Any], scores: list[Any], moves: list[Any], size: tuple[Any, Any], *, training: bool
    ) -> tf.Tensor:
        """Return the best boxes of the region head in an image, without a gradient."""
        before, after = (limits[0 if training else 1] for limits in (self.sizes.before, self.sizes.after))
        chosen, rated, levels = [], [], []
        for number, (bases, score, move) in enumerate(zip(anchors, scores, moves, strict=True)):
            best = tf.math.top_k(tf.stop_gradient(score), tf.minimum(before, tf.size(score)))
            moved = geometry.placed(tf.stop_gradient(tf.gather(move, best.indices)), tf.gather(bases, best.indices))
            chosen.append(geometry.clipped(moved, *size))
            rated.append(best.values)
            levels.append(tf.fill([tf.size(best.values)], number))
        boxes, rates, groups = tf.concat(chosen, 0), tf.concat(rated, 0), tf.concat(levels, 0)
        boxes, rates, groups = (tf.gather(values, geometry.large(boxes, 1e-3)) for values in (boxes, rates, groups))
        return tf.gather(boxes, geometry.best_of(boxes, rates, groups, after, 0.7))

    def _drawn(self, proposals: tf.Tensor, objects: tf.Tensor, labels: Any, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draw proposals of an image to learn from. The objects themselves are proposals, too."""
        boxes = tf.concat([proposals, objects], 0)
        matches = geometry.match(boxes, objects, low=0.5, high=0.5, every_object=False)
        positive, negative = geometry.sample(matches, self.sizes.box_samples, 0.25, seed)
        matched = tf.gather(matches, positive)
        right = tf.cast(tf.gather(tf.cast(labels, tf.int32), matched), tf.int32)
        return {
            "boxes": tf.gather(boxes, tf.concat([positive, negative], 0)),
            "labels": tf.concat([right, tf.zeros_like(negative)], 0),
            "objects": tf.gather(objects, matched),
            "matches": matched,
        }

    def _box_losses(self, levels: list[Any], drawn: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        boxes, labels = (tf.concat([image[name] for image in drawn], 0) for name in ("boxes", "labels"))
        images = tf.concat([tf.fill([tf.shape(image["boxes"])[0]], number) for number, image in enumerate(drawn)], 0)
        logits, offsets = self.box_head(self._pooled(levels, boxes, images, 7))
        offsets = tf.gather(tf.reshape(offsets, [-1, self.classes, 4]), labels, batch_dims=1)
        positive = tf.where(labels > 0)[:, 0]
        targets = geometry.offsets(
            tf.concat([image["objects"] for image in drawn], 0), tf.gather(boxes, positive), _WEIGHTS
        )
        classified = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        count = tf.cast(tf.size(labels), self.kind)
        return {
            "loss_classifier": tf.reduce_mean(classified),
            "loss_box_reg": geometry.smooth(tf.gather(offsets, positive) - targets) / count,
        }

    def _mask_loss(
        self, levels: list[Any], drawn: list[dict[str, tf.Tensor]], targets: list[dict[str, Any]], scaled: Scaled
    ) -> dict[str, tf.Tensor]:
        """Return the mean cross entropy of the pixels of all boxes with an object, in the mask of their class."""
        boxes, labels, images, right = [], [], [], []
        for number, (image, target) in enumerate(zip(drawn, targets, strict=True)):
            count = tf.size(image["matches"])
            boxes.append(image["boxes"][:count])
            labels.append(image["labels"][:count])
            images.append(tf.fill([count], number))
            # Masks have the size of the original image.
            masks = tf.ensure_shape(tf.cast(target["masks"], self.kind)[..., None], [None, None, None, 1])
            original = boxes[-1] / scaled.factors[number]
            right.append(geometry.pooled(masks, original, image["matches"], tf.ones((), self.kind), 28)[..., 0])
        chosen = tf.concat(labels, 0)
        scores = self.mask_head(self._pooled(levels, tf.concat(boxes, 0), tf.concat(images, 0), 14))
        scores = tf.gather(tf.transpose(scores, [0, 3, 1, 2]), chosen, batch_dims=1)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.concat(right, 0), scores)
        # Images without an object have no such box, and the loss 0.
        return {"loss_mask": tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), self.kind))}

    def _pooled(self, levels: list[Any], boxes: tf.Tensor, images: tf.Tensor, size: int) -> tf.Tensor:
        """Return the cells of each box from the level that fits its size, [n, size, size, width]."""
        # The last level is for anchors only. The strides of the others are 4, 8, ...
        area = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], axis=1)
        level = tf.floor(4 + tf.math.log(tf.sqrt(area) / 224) / tf.math.log(tf.constant(2, area.dtype)) + 1e-6)
        level = tf.clip_by_value(tf.cast(level, tf.int32) - 2, 0, len(levels) - 2)
        indices, cells = [], []
        for number, features in enumerate(levels[:-1]):
            selected = tf.where(level == number)[:, 0]
            indices.append(selected)
            at = tf.gather(boxes, selected), tf.gather(images, selected)
            cells.append(geometry.pooled(features, *at, tf.constant(0.25 / 2**number, self.kind), size))
        # Back into the order of the boxes.
        order = tf.argsort(tf.concat(indices, 0))
        return tf.gather(tf.concat(cells, 0), order)


def build(size: str, classes: int) -> MaskRCNN:
    """Build the model for a number of classes, not counting the background, with random weights."""
    return MaskRCNN(SIZES[size], classes)
