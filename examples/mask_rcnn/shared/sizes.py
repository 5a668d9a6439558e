"""Settings of the models that the examples build themselves: torchvision's for ResNet-50, and a small model's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Settings of a model. The default ones are those that torchvision publishes for ResNet-50."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    expansion: int = 4
    width: int = 256
    hidden: int = 1024
    mask_depth: int = 4
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    shorter: int = 800
    longer: int = 1333
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    deviation: tuple[float, ...] = (0.229, 0.224, 0.225)
    # Proposals per level before, and of all levels after the suppression of overlaps: in training, and in detection.
    before: tuple[int, int] = (2000, 1000)
    after: tuple[int, int] = (2000, 1000)
    region_samples: int = 256
    box_samples: int = 512
    detections: int = 100


# For images of 64 x 64: three stages of one block each, narrow heads, and few proposals.
SMALL = Sizes(
    depths=(1, 1, 1), expansion=1, width=64, hidden=128, mask_depth=2, anchors=(8, 16, 24, 32), shorter=64, longer=64,
    mean=(0.5,) * 3, deviation=(0.25,) * 3, before=(100, 100), after=(64, 32), region_samples=64, box_samples=32,
    detections=10,
)  # fmt: skip
SIZES = {"resnet50": Sizes(), "small": SMALL}
