"""The pixels of images and of what is marked in them, as torchvision's detectors take them."""

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
    """The images of a file.

        images = Images(read(Path("val2017")))
        image, target = images[0]       # [3, height, width] in 0..1; boxes [n, 4] as corners, labels, masks

    Raises `DataError` for an image that does not have the size that the file says.
    """

    def __init__(self, data: Coco) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.pictures)

    def __getitem__(self, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        picture = self._data.pictures[place]
        with Image.open(picture.path) as file:
            pixels = np.array(file.convert("RGB"))
        if pixels.shape[:2] != (picture.height, picture.width):
            size = f"{pixels.shape[1]} x {pixels.shape[0]}"
            said = f"{self._data.file} says {picture.width} x {picture.height}"
            raise DataError(f"{picture.path} is {size}, and {said}")
        boxes = torch.tensor([each.box for each in picture.instances]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        masks = [_outline(each.segmentation, picture.height, picture.width) for each in picture.instances]
        target = {
            "boxes": boxes,
            "labels": torch.tensor([each.label for each in picture.instances], dtype=torch.int64),
            "masks": torch.from_numpy(np.stack(masks)) if masks else torch.zeros((0, *pixels.shape[:2])).byte(),
        }
        return torch.from_numpy(pixels).permute(2, 0, 1) / 255, target


def _outline(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return the pixels of polygons, or of run lengths, as [height, width] of 0 and 1."""
    if isinstance(segmentation, list):
        segmentation = rle.merge(rle.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = rle.frPyObjects(segmentation, height, width)
    return rle.decode(segmentation)
