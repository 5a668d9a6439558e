"""Mask R-CNN in MXNet with torchvision's settings: the full model, and a small one for images of 64 x 64.

    image -> pyramid -> region head: anchors -> proposals -> box head: classes and boxes -> mask head: masks

The networks compute in MXNet. Between them NumPy matches, draws and selects boxes, which have no gradient.
Source: He et al., arXiv 1703.06870.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import boxes as geometry
import mxnet as mx
import networks
import numpy as np
import operations
from mxnet import gluon
from sizes import SIZES, Sizes

# Weights of the offsets of the box head, as in torchvision.
_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
# Seeds of the draws in one image: the part's seed, the number of the image, and one of these numbers.
_REGIONS, _BOXES = 0, 1


@dataclass
class Scaled:
    """A batch of images, resized and padded, the size of each one without padding, and the factors of its sides."""

    images: Any
    sizes: list[tuple[int, int]] = field(default_factory=list)
    factors: list[Any] = field(default_factory=list)


@dataclass
class Drawn:
    """Boxes of all images to learn from, with the number of their image, their label, and their object's box.

    `matches` are the numbers of the objects in their image. Boxes of the background have the label 0, no object, and
    the offsets 0.
    """

    boxes: Any
    images: Any
    labels: Any
    matches: Any
    offsets: Any


class MaskRCNN(gluon.Block):
    """The model for `classes` classes, not counting the background.

    losses = model.losses_of(images, targets, seed)    # a dict of five scalars
    output = model.detect(image)                       # boxes [n, 4], labels, scores [n], masks [n, 28, 28]
    """

    def __init__(self, sizes: Sizes, classes: int, device: mx.Context) -> None:
        super().__init__()
        self.sizes, self.classes, self.device = sizes, classes + 1, device
        with self.name_scope():
            self.pyramid = networks.Pyramid(sizes.depths, expansion=sizes.expansion, width=sizes.width)
            self.regions = networks.RegionHead(sizes.width, 3)
            self.box_head = networks.BoxHead(sizes.width, sizes.hidden, self.classes)
            self.mask_head = networks.mask_head(sizes.width, sizes.mask_depth, self.classes)

    @property
    def kind(self) -> Any:
        """The type of the weights, fp32 or fp64."""
        return self.regions.hidden.weight.dtype

    def losses_of(self, images: Sequence[Any], targets: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
        """Return the mean losses of the images by name. `seed` decides which boxes the model learns from."""
        scaled = self._scaled(images)
        levels = self.pyramid(scaled.images)
        scores, moves = self.regions(levels)
        anchors = self._anchors(levels, scaled.images)
        objects = [target["boxes"] * factors for target, factors in zip(targets, scaled.factors, strict=True)]
        proposals = self._proposals(anchors, scores, moves, scaled.sizes, training=True)
        drawn = self._drawn_boxes(proposals, objects, [target["labels"] for target in targets], seed)
        return {
            **self._region_losses(np.concatenate(anchors), objects, scores, moves, seed),
            **self._box_losses(levels, drawn),
            **self._mask_loss(levels, drawn, targets, scaled),
        }

    def detect(self, image: Any) -> dict[str, Any]:
        """Return the objects of an image in NumPy, the highest score first."""
        scaled = self._scaled([image])
        levels = self.pyramid(scaled.images)
        [boxes] = self._proposals(
            self._anchors(levels, scaled.images), *self.regions(levels), scaled.sizes, training=False
        )
        logits, moves = self.box_head(self._pooled(levels, boxes, np.zeros(len(boxes)), 7))
        # One box per class; the background has none.
        shares = mx.nd.softmax(logits).asnumpy()[:, 1:].reshape(-1)
        labels = np.tile(np.arange(1, self.classes), len(boxes))
        moves = moves.asnumpy()[:, 1:].reshape(-1, 4)
        boxes = geometry.placed(moves, np.repeat(boxes, self.classes - 1, axis=0), _WEIGHTS)
        boxes = geometry.clipped(boxes, *scaled.sizes[0])
        eligible = np.flatnonzero((shares > 0.05) & geometry.large(boxes, 0.01))
        boxes, labels, shares = boxes[eligible], labels[eligible], shares[eligible]
        kept = operations.best_of(boxes, shares, labels, self.sizes.detections, 0.5)
        boxes, labels, shares = boxes[kept], labels[kept], shares[kept]
        masks = np.zeros((0, 28, 28))
        if len(kept):
            scores = self.mask_head(self._pooled(levels, boxes, np.zeros(len(boxes)), 14))
            masks = mx.nd.sigmoid(scores).asnumpy()[np.arange(len(labels)), labels]
        return {"boxes": boxes / scaled.factors[0], "labels": labels, "scores": shares, "masks": masks}

    def _scaled(self, images: Sequence[Any]) -> Scaled:
        """Resize images, and pad them on the right and below to one size, a multiple of 32."""
        scaled, resized = Scaled(None), []
        for image in images:
            pixels = (image / 255 - np.array(self.sizes.mean)) / np.array(self.sizes.deviation)
            sides = np.array(image.shape[:2])
            factor = min(self.sizes.shorter / min(sides), self.sizes.longer / max(sides))
            size = np.floor(sides * factor).astype(int)
            pixels = self._array(pixels.transpose(2, 0, 1)[None])
            if tuple(size) != tuple(sides):
                shape = {"height": int(size[0]), "width": int(size[1])}
                pixels = mx.nd.contrib.BilinearResize2D(pixels, **shape, align_corners=False)
            resized.append(pixels[0].asnumpy())
            scaled.sizes.append((int(size[0]), int(size[1])))
            scaled.factors.append(np.tile((size / sides)[::-1], 2))
        height, width = (-(-max(size[axis] for size in scaled.sizes) // 32) * 32 for axis in (0, 1))
        padded = [
            np.pad(pixels, ((0, 0), (0, height - pixels.shape[1]), (0, width - pixels.shape[2]))) for pixels in resized
        ]
        scaled.images = self._array(np.stack(padded))
        return scaled

    def _anchors(self, levels: list[Any], images: Any) -> list[Any]:
        """Return the anchors of each level."""
        anchors = []
        for size, level in zip(self.sizes.anchors, levels, strict=True):
            stride = images.shape[2] // level.shape[2], images.shape[3] // level.shape[3]
            anchors.append(geometry.anchors(size, level.shape[2:], stride))
        return anchors

    def _proposals(
        self, anchors: list[Any], scores: Any, moves: Any, sizes: list[tuple[int, int]], *, training: bool
    ) -> list[Any]:
        """Return the best boxes of the region head in each image, without a gradient."""
        before, after = (limits[0 if training else 1] for limits in (self.sizes.before, self.sizes.after))
        starts = np.cumsum([0, *map(len, anchors[:-1])])
        proposals = []
        for score, move, size in zip(scores.asnumpy(), moves.asnumpy(), sizes, strict=True):
            best = [
                start + np.argsort(-score[start : start + len(bases)], kind="stable")[:before]
                for start, bases in zip(starts, anchors, strict=True)
            ]
            groups = np.repeat(np.arange(len(best)), list(map(len, best)))
            best = np.concatenate(best)
            boxes = geometry.clipped(geometry.placed(move[best], np.concatenate(anchors)[best]), *size)
            chosen = np.flatnonzero(geometry.large(boxes, 1e-3))
            kept = operations.best_of(boxes[chosen], score[best][chosen], groups[chosen], after, 0.7)
            # MXNet has no arrays without elements: without any box, the proposal is the image.
            proposals.append(boxes[chosen][kept] if len(kept) else np.array([[0.0, 0.0, size[1], size[0]]]))
        return proposals

    def _region_losses(self, anchors: Any, objects: list[Any], scores: Any, moves: Any, seed: int) -> dict[str, Any]:
        """Return the mean losses of anchors that are drawn from all images."""
        rows, labels, offsets = [], [], []
        for number, boxes in enumerate(objects):
            matches = geometry.match(anchors, boxes, low=0.3, high=0.7, every_object=True)
            positive, negative = geometry.sample(matches, self.sizes.region_samples, 0.5, [seed, number, _REGIONS])
            rows += [number * len(anchors) + positive, number * len(anchors) + negative]
            labels += [np.ones(len(positive)), np.zeros(len(negative))]
            offsets += [geometry.offsets(boxes[matches[positive]], anchors[positive]), np.zeros((len(negative), 4))]
        rows, labels, offsets = (np.concatenate(values) for values in (rows, labels, offsets))
        chosen, right = self._indices(rows), self._array(labels)
        objectness = operations.cross_entropy(mx.nd.take(scores.reshape(-1), chosen), right).mean()
        moves = mx.nd.take(moves.reshape((-1, 4)), chosen)
        smooth = operations.smooth(moves - self._array(offsets))
        return {"loss_objectness": objectness, "loss_rpn_box_reg": (smooth * right).mean()}

    def _drawn_boxes(self, proposals: list[Any], objects: list[Any], labels: list[Any], seed: int) -> Drawn:
        """Draw proposals to learn from. The objects themselves are proposals, too."""
        parts = []
        for number, (boxes, right) in enumerate(zip(proposals, objects, strict=True)):
            boxes = np.concatenate([boxes, right])
            matches = geometry.match(boxes, right, low=0.5, high=0.5, every_object=False)
            chosen = geometry.sample(matches, self.sizes.box_samples, 0.25, [seed, number, _BOXES])
            count, both = len(chosen[0]), np.concatenate(chosen)
            boxes, matches, offsets = boxes[both], matches[both], np.zeros((len(both), 4))
            classes = np.zeros(len(both), int)
            offsets[:count] = geometry.offsets(right[matches[:count]], boxes[:count], _WEIGHTS)
            classes[:count] = labels[number][matches[:count]]
            parts.append((boxes, np.full(len(both), number), classes, matches, offsets))
        return Drawn(*map(np.concatenate, zip(*parts, strict=True)))

    def _box_losses(self, levels: list[Any], drawn: Drawn) -> dict[str, Any]:
        logits, moves = self.box_head(self._pooled(levels, drawn.boxes, drawn.images, 7))
        classified = mx.gluon.loss.SoftmaxCrossEntropyLoss()(logits, self._array(drawn.labels))
        rows = np.arange(len(drawn.labels)) * self.classes + drawn.labels
        moves = mx.nd.take(moves.reshape((-1, 4)), self._indices(rows))
        smooth = operations.smooth(moves - self._array(drawn.offsets))
        return {
            "loss_classifier": classified.mean(),
            "loss_box_reg": (smooth * self._array(drawn.labels > 0)).mean(),
        }

    def _mask_loss(
        self, levels: list[Any], drawn: Drawn, targets: Sequence[dict[str, Any]], scaled: Scaled
    ) -> dict[str, Any]:
        """Return the mean cross entropy of the pixels of all boxes with an object, in the mask of their class."""
        positive = np.flatnonzero(drawn.labels)
        # Every weight needs a gradient in every step: without an object, compute one mask that counts 0.
        share = 1.0 if len(positive) else 0.0
        positive = positive if len(positive) else np.zeros(1, int)
        boxes, images, labels = drawn.boxes[positive], drawn.images[positive], drawn.labels[positive]
        right = np.zeros((len(positive), 28, 28))
        for number, target in enumerate(targets):
            chosen = np.flatnonzero(images == number)
            if len(target["masks"]) and len(chosen):
                # Masks have the size of the original image.
                original = boxes[chosen] / scaled.factors[number]
                regions = self._array(np.column_stack([drawn.matches[positive][chosen], original]))
                masks = self._array(target["masks"][:, None])
                # One sample per pixel, as in torchvision.
                right[chosen] = operations.pooled(masks, regions, 28, scale=1.0, samples=-1)[:, 0].asnumpy()
        scores = self.mask_head(self._pooled(levels, boxes, images, 14)).reshape((-1, 28, 28))
        scores = mx.nd.take(scores, self._indices(np.arange(len(labels)) * self.classes + labels))
        return {"loss_mask": operations.cross_entropy(scores, self._array(right)).mean() * share}

    def _pooled(self, levels: list[Any], boxes: Any, images: Any, size: int) -> Any:
        """Return the cells of each box from the level that fits its size, [n, width, size, size]."""
        # The last level is for anchors only. The strides of the others are 4, 8, ...
        area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        level = np.floor(4 + np.log2(np.sqrt(area) / 224) + 1e-6)
        level = np.clip(level - 2, 0, len(levels) - 2)
        indices, cells = [], []
        for number, features in enumerate(levels[:-1]):
            chosen = np.flatnonzero(level == number)
            # MXNet has no arrays without elements.
            if len(chosen):
                indices.append(chosen)
                regions = self._array(np.column_stack([images, boxes])[chosen])
                cells.append(operations.pooled(features, regions, size, scale=0.25 / 2**number, samples=2))
        # Back into the order of the boxes.
        return mx.nd.take(mx.nd.concat(*cells, dim=0), self._indices(np.argsort(np.concatenate(indices))))

    def _array(self, values: Any) -> Any:
        return mx.nd.array(values, ctx=self.device, dtype=self.kind)

    def _indices(self, values: Any) -> Any:
        return mx.nd.array(values, ctx=self.device, dtype="int32")


def build(size: str, classes: int, device: mx.Context) -> MaskRCNN:
    """Build the model for a number of classes, not counting the background, with random weights in fp32."""
    model = MaskRCNN(SIZES[size], classes, device)
    model.initialize(ctx=device)
    return model
