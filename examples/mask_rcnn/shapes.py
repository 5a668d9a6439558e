"""Generated pictures in COCO's format: circles, squares and triangles on noise."""

from __future__ import annotations

import json
from math import cos, pi, sin
from pathlib import Path

import numpy as np

CATEGORIES = {"circle": 24, "square": 4, "triangle": 3}
SIZE = 64


def write(folder: Path, *, pictures: int, seed: int) -> None:
    """Write `annotations.json`, and pictures `images/0000.ppm`, ... with one to three shapes each."""
    random = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for number in range(pictures):
        pixels = random.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
        for _ in range(random.integers(1, 4)):
            kind = int(random.integers(len(CATEGORIES)))
            points = _points(list(CATEGORIES.values())[kind], random)
            pixels[_inside(points)] = random.integers(130, 256, 3)
            low, high = points.min(axis=0), points.max(axis=0)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": kind + 1,
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "area": float((high - low).prod()),
                    "segmentation": [points.ravel().tolist()],
                    "iscrowd": 0,
                }
            )
        name = f"{number:04}.ppm"
        (folder / "images" / name).write_bytes(b"P6 %d %d 255\n" % (SIZE, SIZE) + pixels.tobytes())
        images.append({"id": number, "file_name": name, "height": SIZE, "width": SIZE})
    categories = [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))


def _points(corners: int, random: np.random.Generator) -> np.ndarray:
    """Return the corners of a polygon, evenly spaced on a random circle in the picture."""
    radius = random.uniform(8, 14)
    middle = random.uniform(radius, SIZE - radius, 2)
    angles = [2 * pi * (corner + 0.5) / corners + pi / 2 for corner in range(corners)]
    return middle + radius * np.array([(cos(angle), sin(angle)) for angle in angles])


def _inside(points: np.ndarray) -> np.ndarray:
    """Return a mask of the pixels whose middle is inside a convex polygon."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    sides = [
        (end[0] - begin[0]) * (y - begin[1]) - (end[1] - begin[1]) * (x - begin[0])
        for begin, end in zip(points, np.roll(points, -1, axis=0), strict=True)
    ]
    return np.min(sides, axis=0) >= 0
