"""The images and the masks of their instances, in the format of torchvision's detectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from coco import Coco
from common.data import DataError
from PIL import Image
from pycocotools import mask as rle
from torch import Tensor


class Images:
    """The images of a COCO file.

        images = Images(read(Path("val2017")))
        image, target = images[0]       # [3, height, width] in 0..1; boxes [n, 4] as corners, labels, masks

    Raises `DataError` for an image whose size differs from the file's entry.
    """

    def __init__(self, data: Coco) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        picture = self._data.pictures[index]
        with Image.open(picture.path) as file:
            pixels = np.array(file.convert("RGB"))
        if pixels.shape[:2] != (picture.height, picture.width):
            size = f"{pixels.shape[1]} x {pixels.shape[0]}"
            expected = f"{picture.width} x {picture.height}"
            raise DataError(f"{picture.path} has {size} pixels, but its entry in {self._data.file} has {expected}")
        boxes = torch.tensor([instance.box for instance in picture.instances]).reshape(-1, 4)
        # COCO's boxes are a corner and a size, torchvision's are two corners.
        boxes[:, 2:] += boxes[:, :2]
        masks = [_mask(instance.segmentation, picture.height, picture.width) for instance in picture.instances]
        target = {
            "boxes": boxes,
            "labels": torch.tensor([instance.label for instance in picture.instances], dtype=torch.int64),
            "masks": torch.from_numpy(np.stack(masks)) if masks else torch.zeros((0, *pixels.shape[:2])).byte(),
        }
        return torch.from_numpy(pixels).permute(2, 0, 1) / 255, target


def _mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Convert polygons or run lengths to a mask, [height, width] of 0 and 1."""
    if isinstance(segmentation, list):
        segmentation = rle.merge(rle.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = rle.frPyObjects(segmentation, height, width)
    return rle.decode(segmentation)
