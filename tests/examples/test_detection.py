"""examples/mask_rcnn: data in COCO's format and its errors, and the operations that torchvision may lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def coco(module: Load) -> ModuleType:
    return module("mask_rcnn/shared", "coco")


@pytest.fixture
def vision(module: Load) -> ModuleType:
    return module("mask_rcnn/src", "vision")


def content() -> dict[str, Any]:
    box = {"bbox": [1, 2, 3, 4], "area": 12, "segmentation": [[1, 2, 4, 2, 4, 6]]}
    return {
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
        "images": [
            {"id": 2, "file_name": "b.ppm", "height": 8, "width": 8},
            {"id": 1, "file_name": "a.ppm", "height": 8, "width": 8},
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 7, **box},
            {"id": 2, "image_id": 1, "category_id": 3, **box, "iscrowd": 1},
        ],
    }


def folder(tmp_path: Path, data: Any) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("a.ppm", "images/b.ppm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "instances.json").write_text(json.dumps(data))
    return tmp_path


def test_each_image_has_its_instances(tmp_path: Path, coco: ModuleType) -> None:
    data = coco.read(folder(tmp_path, content()))
    assert data.categories == [3, 7]
    assert [(picture.number, picture.path.name) for picture in data.pictures] == [(1, "a.ppm"), (2, "b.ppm")]
    # The crowd is left out. The other instance is a cat, the second class.
    assert [(instance.label, instance.box) for instance in data.pictures[0].instances] == [(2, (1, 2, 3, 4))]
    assert data.pictures[1].instances == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("images"), "has no list `images`"),
        (lambda data: data["images"].clear(), "annotations name image_id 1, which `images` does not have"),
        (lambda data: (data["images"].clear(), data["annotations"].clear()), "no images"),
        (lambda data: data["images"][1].pop("height"), r"images\[1\]: `height` is missing, or is not of type int"),
        (lambda data: data["images"][0].update(file_name="c.ppm"), r"images\[0\]: no file 'c.ppm' in "),
        (
            lambda data: data["annotations"][1].update(area="12"),
            r"annotations\[1\]: `area` is missing, or is not of type float",
        ),
        (lambda data: data["annotations"][0].update(category_id=4), r"annotations\[0\]: category_id 4 is not among"),
        (
            lambda data: data["annotations"][0].update(bbox=[1, 2, 0, 4]),
            r"annotations\[0\]: bbox \[1, 2, 0, 4\] is not",
        ),
        (lambda data: data["annotations"][0].update(bbox=[1, 2, 3]), r"annotations\[0\]: bbox \[1, 2, 3\] is not"),
        (lambda data: data["annotations"][0].update(segmentation=[[1, 2, 3, 4]]), "polygons of at least 3 points"),
        (lambda data: data["annotations"][0].pop("segmentation"), "neither polygons"),
    ],
)
def test_data_that_is_not_in_the_format(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path, coco: ModuleType
) -> None:
    data = content()
    change(data)
    with pytest.raises(ValueError, match=message) as raised:
        coco.read(folder(tmp_path, data))
    assert str(raised.value).startswith(str(tmp_path / "instances.json"))


def test_a_folder_needs_one_file_of_instances(tmp_path: Path, coco: ModuleType) -> None:
    with pytest.raises(ValueError, match="has 0 "):
        coco.read(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        coco.read(tmp_path)


def test_nms_keeps_the_best_of_boxes_that_overlap(vision: ModuleType) -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 5, 10, 15], [20, 20, 30, 30]])
    scores = torch.tensor([0.5, 0.9, 0.8, 0.1])
    assert vision.nms(boxes, scores, 0.5).tolist() == [1, 2, 3]
    assert vision.nms(boxes, scores, 0.2).tolist() == [1, 3]
    assert vision.nms(boxes[:0], scores[:0], 0.5).tolist() == []


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_roi_align_of_a_slope_is_the_slope_in_the_middle_of_each_cell(vision: ModuleType, samples: int) -> None:
    slope = torch.arange(16.0).repeat(16, 1)
    features = torch.stack([torch.stack([slope, slope.T]), torch.stack([slope, slope.T]) + 100])
    regions = torch.tensor([[0.0, 4, 8, 12, 24], [1, 4, 8, 12, 24]])
    cells = vision.roi_align(features, regions, 0.5, 2, 4, samples, False)
    assert cells.shape == (2, 2, 2, 4)
    across, down = torch.tensor([2.5, 3.5, 4.5, 5.5]), torch.tensor([6.0, 10.0])
    torch.testing.assert_close(cells[0, 0], across.expand(2, 4))
    torch.testing.assert_close(cells[0, 1], down[:, None].expand(2, 4))
    torch.testing.assert_close(cells[1], cells[0] + 100)


def test_roi_align_finds_nothing_beyond_the_image(vision: ModuleType) -> None:
    ones = torch.ones(1, 1, 8, 8)
    cells = vision.roi_align(ones, torch.tensor([[0.0, 0, 0, 16, 16]]), 1.0, 2, 2, 2, False)
    assert cells[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
