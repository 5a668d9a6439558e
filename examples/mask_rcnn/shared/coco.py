"""Reader of COCO's format: one JSON file per folder, with the instances in the images that the file names.

train/annotations.json      {"images": [...], "annotations": [...], "categories": [...]}; any name ending in .json
train/000000000009.jpg      or train/images/000000000009.jpg; `file_name` is relative to either folder
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data import DataError


@dataclass(frozen=True)
class Instance:
    """One object in an image: its class, counted from 1, its box (x, y, width, height in pixels), and its outline.

    The outline has COCO's format: polygons or run lengths.
    """

    label: int
    box: tuple[float, float, float, float]
    segmentation: Any


@dataclass(frozen=True)
class Picture:
    """One image and its instances, without crowds, which torchvision's Mask R-CNN cannot be trained on."""

    number: int
    path: Path
    height: int
    width: int
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Coco:
    """The content of a file. `categories` has the file's own numbers of the classes 1, 2, ...; images are sorted."""

    file: Path
    categories: list[int]
    pictures: list[Picture]


def read(folder: Path) -> Coco:
    """Read a folder's JSON file. Raises `DataError` with the entry and the field if the file has another format."""
    file = _file(folder)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from None
    categories = sorted(entry["id"] for entry in _entries(file, content, "categories", id=int, name=str))
    # Class 0 is the background.
    instances_by_image = _instances(file, content, {number: label for label, number in enumerate(categories, 1)})
    pictures = []
    images = _entries(file, content, "images", id=int, file_name=str, height=int, width=int)
    for index, entry in enumerate(images):
        path = _image(f"{file}: images[{index}]", folder, entry["file_name"])
        instances = tuple(instances_by_image.pop(entry["id"], ()))
        pictures.append(Picture(entry["id"], path, entry["height"], entry["width"], instances))
    if instances_by_image:
        raise DataError(f"{file}: annotations name image_id {min(instances_by_image)}, which `images` does not have")
    if not pictures:
        raise DataError(f"{file}: no images")
    return Coco(file, categories, sorted(pictures, key=lambda picture: picture.number))


def _file(folder: Path) -> Path:
    files = sorted(folder.glob("*.json"))
    if len(files) != 1:
        raise DataError(f"{folder} has {len(files)} .json files; it needs exactly one, with COCO's instances")
    return files[0]


def _entries(file: Path, content: Any, key: str, **fields: type) -> list[dict[str, Any]]:
    """Return a list of the file after a check of its entries: each one must have these fields with these types."""
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        raise DataError(f"{file} has no list `{key}`")
    for index, entry in enumerate(content[key]):
        for field, kind in fields.items():
            accepted = (int, float) if kind is float else kind
            if not isinstance(entry, dict) or not isinstance(entry.get(field), accepted):
                raise DataError(f"{file}: {key}[{index}]: `{field}` is missing, or is not of type {kind.__name__}")
    return content[key]


def _instances(file: Path, content: Any, labels: Mapping[int, int]) -> dict[int, list[Instance]]:
    """Return the instances by the number of their image. `labels` maps the file's category numbers to classes."""
    instances: dict[int, list[Instance]] = {}
    fields = {"id": int, "image_id": int, "category_id": int, "bbox": list, "area": float}
    entries = _entries(file, content, "annotations", **fields)
    for index, entry in enumerate(entries):
        name = f"{file}: annotations[{index}]"
        box, shape = entry["bbox"], entry.get("segmentation")
        if entry["category_id"] not in labels:
            raise DataError(f"{name}: category_id {entry['category_id']} is not among `categories`")
        # An empty box has a logarithm of minus infinity in the box regression, and the loss becomes NaN.
        if len(box) != 4 or not all(isinstance(value, int | float) for value in box) or min(box[2:]) <= 0:
            raise DataError(f"{name}: bbox {box} is not [x, y, width, height] with a positive area")
        if not _is_outline(shape):
            raise DataError(f"{name}: segmentation is neither polygons of at least 3 points nor run lengths")
        if not entry.get("iscrowd"):
            instance = Instance(labels[entry["category_id"]], tuple(box), shape)
            instances.setdefault(entry["image_id"], []).append(instance)
    return instances


def _is_outline(shape: Any) -> bool:
    if isinstance(shape, dict):
        return {"counts", "size"} <= set(shape)
    # A polygon is a flat list of x and y.
    return isinstance(shape, list) and bool(shape) and all(len(part) >= 6 and len(part) % 2 == 0 for part in shape)


def _image(entry: str, folder: Path, name: str) -> Path:
    """Return the path of an image. `entry` is the image's entry in the file, for messages."""
    for path in (folder / name, folder / "images" / name):
        if path.is_file():
            return path
    raise DataError(f"{entry}: no file {name!r} in {folder} or in its subfolder images")
