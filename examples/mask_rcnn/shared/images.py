"""The images and the masks of their instances as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from coco import Coco
from common.data import DataError
from PIL import Image
from pycocotools import mask as rle


def load(data: Coco, index: int) -> tuple[Any, dict[str, Any]]:
    """Return an image of a COCO file, [height, width, 3] of 0 to 255, and its instances.

        pixels, target = load(read(Path("val2017")), 0)

    `target` has `boxes`, [n, 4] as two corners in fp32, `labels`, [n], counted from 1, and `masks`, [n, height, width]
    of 0 and 1. Raises `DataError` for an image whose size differs from the file's entry.
    """
    picture = data.pictures[index]
    with Image.open(picture.path) as file:
        pixels = np.array(file.convert("RGB"))
    if pixels.shape[:2] != (picture.height, picture.width):
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        expected = f"{picture.width} x {picture.height}"
        raise DataError(f"{picture.path} has {size} pixels, but its entry in {data.file} has {expected}")
    boxes = np.array([instance.box for instance in picture.instances], np.float32).reshape(-1, 4)
    # COCO's boxes are a corner and a size.
    boxes[:, 2:] += boxes[:, :2]
    masks = [_mask(instance.segmentation, picture.height, picture.width) for instance in picture.instances]
    target = {
        "boxes": boxes,
        "labels": np.array([instance.label for instance in picture.instances], np.int64),
        "masks": np.stack(masks) if masks else np.zeros((0, *pixels.shape[:2]), np.uint8),
    }
    return pixels, target


def _mask(segmentation: Any, height: int, width: int) -> Any:
    """Convert polygons or run lengths to a mask, [height, width] of 0 and 1."""
    if isinstance(segmentation, list):
        segmentation = rle.merge(rle.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = rle.frPyObjects(segmentation, height, width)
    return rle.decode(segmentation)
