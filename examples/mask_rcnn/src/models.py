"""torchvision's Mask R-CNN: the published model, and a small one for pictures of 64 x 64."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import vision

vision.prepare()  # must run before the first import of torchvision

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torchvision.models.detection import MaskRCNN  # noqa: E402
from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.backbone_utils import BackboneWithFPN  # noqa: E402
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead  # noqa: E402
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor  # noqa: E402
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet  # noqa: E402
from torchvision.ops.misc import FrozenBatchNorm2d  # noqa: E402


def build(size: str, classes: int, *, weights: Path | None = None) -> MaskRCNN:
    """Build the model for a number of classes, not counting the background.

    `weights` is a state dict as torchvision publishes it. With it, BatchNorm is frozen, as in the published model.
    Layers of another shape, such as the last layers for other classes, keep their random weights. Without `weights`,
    the backbone has GroupNorm, because BatchNorm's statistics of one or two images would be noise. Raises `ValueError`
    if no weight fits.
    """
    norm = FrozenBatchNorm2d if weights else partial(nn.GroupNorm, 32)
    model = _full(classes + 1, norm) if size == "resnet50" else _small(classes + 1, norm)
    if weights:
        published, state = torch.load(weights, map_location="cpu", weights_only=True), model.state_dict()
        shapes = {name: value.shape for name, value in state.items()}
        fitting = {name: value for name, value in published.items() if shapes.get(name) == value.shape}
        if not fitting:
            raise ValueError(f"{weights} has no weight of a Mask R-CNN with a {size} backbone")
        model.load_state_dict(fitting, strict=False)
    return model


def _full(classes: int, norm: type[nn.Module] | partial[nn.Module]) -> MaskRCNN:
    return MaskRCNN(_pyramid(ResNet(Bottleneck, [3, 4, 6, 3], norm_layer=norm), 256, stages=4), classes)


def _small(classes: int, norm: type[nn.Module] | partial[nn.Module]) -> MaskRCNN:
    """Build a model with three stages of one block each, narrow heads, and few proposals."""
    width = 64
    return MaskRCNN(
        _pyramid(ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=norm), width, stages=3),
        min_size=64,
        max_size=64,
        image_mean=[0.5] * 3,
        image_std=[0.25] * 3,
        rpn_anchor_generator=AnchorGenerator(((8,), (16,), (24,), (32,)), ((0.5, 1.0, 2.0),) * 4),
        rpn_pre_nms_top_n_train=100,
        rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_train=64,
        rpn_post_nms_top_n_test=32,
        rpn_batch_size_per_image=64,
        box_batch_size_per_image=32,
        box_detections_per_img=10,
        box_head=TwoMLPHead(width * 7**2, 128),
        box_predictor=FastRCNNPredictor(128, classes),
        mask_head=MaskRCNNHeads(width, (width, width), 1),
        mask_predictor=MaskRCNNPredictor(width, width, classes),
    )


def _pyramid(backbone: ResNet, width: int, *, stages: int) -> BackboneWithFPN:
    names = {f"layer{stage + 1}": str(stage) for stage in range(stages)}
    first = backbone.fc.in_features // 2**3
    return BackboneWithFPN(backbone, names, [first * 2**stage for stage in range(stages)], width)
