"""COCO's format: one JSON file in a folder, with what is marked in the images that it names.

train/annotations.json      {"images": [...], "annotations": [...], "categories": [...]}, whatever the file's name
train/000000000009.jpg      or train/images/000000000009.jpg: where `file_name` leads from either
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
    """One marked thing: its class from 1 on, its box (x, y, width, height in pixels), its outline as COCO has it."""

    label: int
    box: tuple[float, float, float, float]
    segmentation: Any


@dataclass(frozen=True)
class Picture:
    """One image and what is marked in it; crowds, which nothing can be trained on, are left out."""

    number: int
    path: Path
    height: int
    width: int
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Coco:
    """What a file says: its own numbers of the classes 1, 2, ..., and the images in the order of their numbers."""

    file: Path
    categories: list[int]
    pictures: list[Picture]


def read(folder: Path) -> Coco:
    """Read a folder's file. Raises `DataError` for what is not in the format, with the entry and the field."""
    file = _file(folder)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise DataError(f"{file}: no JSON: {problem}") from None
    categories = sorted(entry["id"] for entry in _entries(file, content, "categories", id=int, name=str))
    marked = _marked(file, content, {number: label for label, number in enumerate(categories, 1)})
    pictures = []
    images = _entries(file, content, "images", id=int, file_name=str, height=int, width=int)
    for place, entry in enumerate(images):
        path = _image(f"{file}: images[{place}]", folder, entry["file_name"])
        instances = tuple(marked.pop(entry["id"], ()))
        pictures.append(Picture(entry["id"], path, entry["height"], entry["width"], instances))
    if marked:
        raise DataError(f"{file}: annotations name image_id {min(marked)}, which `images` does not have")
    if not pictures:
        raise DataError(f"{file}: no images")
    return Coco(file, categories, sorted(pictures, key=lambda picture: picture.number))


def _file(folder: Path) -> Path:
    found = sorted(folder.glob("*.json"))
    if len(found) != 1:
        raise DataError(f"{folder} has {len(found)} .json files at its top, and needs one: COCO's instances")
    return found[0]


def _entries(file: Path, content: Any, key: str, **fields: type) -> list[dict[str, Any]]:
    """Return a list of the file, after a look at the type of each entry's fields."""
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        raise DataError(f"{file}: no list `{key}`")
    for place, entry in enumerate(content[key]):
        for field, kind in fields.items():
            accepted = (int, float) if kind is float else kind
            if not isinstance(entry, dict) or not isinstance(entry.get(field), accepted):
                raise DataError(f"{file}: {key}[{place}]: `{field}` is missing, or no {kind.__name__}")
    return content[key]


def _marked(file: Path, content: Any, labels: Mapping[int, int]) -> dict[int, list[Instance]]:
    """Return the instances of each image."""
    marked: dict[int, list[Instance]] = {}
    fields = {"id": int, "image_id": int, "category_id": int, "bbox": list, "area": float}
    entries = _entries(file, content, "annotations", **fields)
    for place, entry in enumerate(entries):
        where = f"{file}: annotations[{place}]"
        box, shape = entry["bbox"], entry.get("segmentation")
        if entry["category_id"] not in labels:
            raise DataError(f"{where}: category_id {entry['category_id']} is not among `categories`")
        if len(box) != 4 or not all(isinstance(value, int | float) for value in box) or min(box[2:]) <= 0:
            raise DataError(f"{where}: bbox {box} is not [x, y, width, height] with an area")
        if not _drawn(shape):
            raise DataError(f"{where}: segmentation is neither polygons of at least 3 points nor run lengths")
        if not entry.get("iscrowd"):
            instance = Instance(labels[entry["category_id"]], tuple(box), shape)
            marked.setdefault(entry["image_id"], []).append(instance)
    return marked


def _drawn(shape: Any) -> bool:
    if isinstance(shape, dict):
        return {"counts", "size"} <= set(shape)
    return isinstance(shape, list) and bool(shape) and all(len(each) >= 6 and len(each) % 2 == 0 for each in shape)


def _image(where: str, folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "images" / name):
        if path.is_file():
            return path
    raise DataError(f"{where}: no file {name!r} in {folder} or its folder images")
