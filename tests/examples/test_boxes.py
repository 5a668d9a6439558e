"""examples/mask_rcnn: the arithmetic of boxes of the model on MXNet, and the masks that are put into the image."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def boxes(module: Load) -> ModuleType:
    return module("mask_rcnn/src_mxnet", "boxes")


def test_anchors_of_a_cell_are_next_to_each_other_row_by_row(boxes: ModuleType) -> None:
    anchors = boxes.anchors(8, (2, 3), (4, 5))
    assert anchors.shape == (2 * 3 * 3, 4)
    # Wide, square and high, around the corner of the cell.
    assert anchors[:3].tolist() == [[-6, -3, 6, 3], [-4, -4, 4, 4], [-3, -6, 3, 6]]
    # The next cell of the row is 5 pixels farther right, the next row 4 pixels below.
    assert (anchors[3:6] - anchors[:3]).tolist() == [[5, 0, 5, 0]] * 3
    assert (anchors[9:12] - anchors[:3]).tolist() == [[0, 4, 0, 4]] * 3


def test_overlaps_are_shares_of_the_union(boxes: ModuleType) -> None:
    first = np.array([[0.0, 0, 10, 10], [20, 20, 30, 40]])
    second = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [10, 10, 20, 20]])
    assert boxes.overlaps(first, second) == pytest.approx(np.array([[1, 1 / 3, 0], [0, 0, 0]]))


def test_offsets_of_a_moved_and_grown_box(boxes: ModuleType) -> None:
    bases, moved = np.array([[10.0, 10, 20, 30]]), np.array([[15.0, 10, 35, 20]])
    expected = np.array([[1.0, -0.25, np.log(2), np.log(0.5)]])
    assert boxes.offsets(moved, bases) == pytest.approx(expected)
    assert boxes.offsets(moved, bases, (10, 10, 5, 5)) == pytest.approx(expected * [10, 10, 5, 5])


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (10, 10, 5, 5)])
def test_boxes_at_their_offsets_are_the_boxes(boxes: ModuleType, weights: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    corners = random.uniform(0, 50, (2, 20, 2))
    bases, moved = np.concatenate([corners, corners + random.uniform(1, 40, (2, 20, 2))], axis=2)
    assert boxes.placed(boxes.offsets(moved, bases, weights), bases, weights) == pytest.approx(moved)
    # A ratio of sides is at most 1000 / 16.
    assert boxes.placed(np.array([[0.0, 0, 9, 9]]), np.array([[0.0, 0, 16, 16]])) == pytest.approx(
        np.array([[-492.0, -492, 508, 508]])
    )


def test_boxes_are_clipped_to_the_image_and_small_ones_are_known(boxes: ModuleType) -> None:
    clipped = boxes.clipped(np.array([[-5.0, -5, 90, 90], [70, 3, 80, 9]]), 50, 60)
    assert clipped.tolist() == [[0, 0, 60, 50], [60, 3, 60, 9]]
    assert boxes.large(clipped, 0.01).tolist() == [True, False]


def test_matches_are_objects_background_or_neither(boxes: ModuleType) -> None:
    objects = np.array([[0.0, 0, 10, 10], [100, 100, 110, 110]])
    # Overlaps of 1, 0.8, 0.5 and 0 with the first object, and one of 0.2 with the second.
    rows = [[0, 0, 10, 10], [0, 0, 10, 8], [0, 0, 10, 5], [50, 50, 60, 60], [100, 100, 110, 102]]
    candidates = np.array(rows, float)
    limits = {"low": 0.3, "high": 0.7}
    assert boxes.match(candidates, objects, **limits, every_object=False).tolist() == [0, 0, -2, -1, -1]
    # The last box overlaps the second object most.
    assert boxes.match(candidates, objects, **limits, every_object=True).tolist() == [0, 0, -2, -1, 1]
    assert boxes.match(candidates, objects, low=0.5, high=0.5, every_object=False).tolist() == [0, 0, 0, -1, -1]
    assert boxes.match(candidates, objects[:0], **limits, every_object=True).tolist() == [-1] * 5


def test_samples_are_drawn_from_the_seed(boxes: ModuleType) -> None:
    matches = np.array([0, -1, -2, 1, -1] * 20)
    positive, negative = boxes.sample(matches, 32, 0.25, [5, 0, 1])
    assert (len(positive), len(negative)) == (8, 24)
    assert (matches[positive] >= 0).all()
    assert (matches[negative] == -1).all()
    assert (np.diff(positive) > 0).all()
    assert (np.diff(negative) > 0).all()
    again, other = (boxes.sample(matches, 32, 0.25, [5, image, 1]) for image in (0, 1))
    assert [indices.tolist() for indices in again] == [positive.tolist(), negative.tolist()]
    assert other[1].tolist() != negative.tolist()
    # With few objects the background fills the count.
    positive, negative = boxes.sample(np.array([2, -1, -1, -2]), 32, 0.25, [5])
    assert (positive.tolist(), negative.tolist()) == ([0], [1, 2])


@pytest.mark.parametrize("size", [(28, 28), (40, 9), (5, 33)])
def test_masks_are_resized_as_in_torch(module: Load, size: tuple[int, int]) -> None:
    mask = np.random.default_rng(0).random((28, 28))
    expected = torch.nn.functional.interpolate(torch.from_numpy(mask)[None, None], size, mode="bilinear")[0, 0]
    resized = module("mask_rcnn/shared", "pasting").resized(mask, *size)
    torch.testing.assert_close(torch.from_numpy(resized), expected)


def test_a_mask_fills_its_box_and_ends_at_the_image(module: Load) -> None:
    pasted = module("mask_rcnn/shared", "pasting").pasted
    areas = np.array([[10.0, 20, 38, 34], [-8, -8, 8, 8]])
    inside, corner = pasted(np.ones((2, 28, 28)), areas, 50, 60) > 0.5
    rows, columns = np.nonzero(inside)
    # As in torchvision, the last pixel may be one too many.
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == pytest.approx((20, 33, 10, 37), abs=1)
    assert corner[:7, :7].all()
    assert not corner[10:].any()
    assert pasted(np.zeros((0, 28, 28)), np.zeros((0, 4)), 50, 60).shape == (0, 50, 60)
