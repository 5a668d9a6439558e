"""Makes torchvision usable if its compiled operations do not fit the installed torch.

The wheel on PyPI is built for CUDA. Its library cannot be loaded with a CPU build of torch, and `import torchvision`
fails. This module then computes the two operations that Mask R-CNN needs, nms and roi_align, with torch's operations.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

_declared: torch.library.Library | None = None


def prepare() -> bool:
    """Make `import torchvision` work. Return true if its compiled operations are used. Call it before the import."""
    global _declared
    specification = importlib.util.find_spec("torchvision")
    if specification is None or specification.origin is None:
        raise ModuleNotFoundError("torchvision is missing: install the requirements.txt next to this script")
    if any(map(_loads, Path(specification.origin).parent.glob("_C*.so"))):
        return True
    if _declared is None:
        # The import looks up these two operations by name. They exist as long as the `Library` object does, so a global
        # variable keeps it.
        _declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.impl("nms", nms, "CompositeExplicitAutograd")
    # torchvision.ops.boxes checks that the library is loaded, although Mask R-CNN only calls its nms.
    importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None  # type: ignore[attr-defined]
    # torchvision's own substitute for roi_align takes a hundred times as long, or minutes to compile.
    importlib.import_module("torchvision.ops.roi_align")._roi_align = roi_align  # type: ignore[attr-defined]
    return False


def _loads(library: Path) -> bool:
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes to keep, highest score first (non-maximum suppression).

    A box is dropped if it overlaps a kept box with a higher score by more than `iou_threshold`.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    order = scores.argsort(descending=True, stable=True)
    covers = (_overlaps(boxes[order]) > iou_threshold).cpu().numpy()
    kept = torch.ones(len(order), dtype=torch.bool).numpy()
    for index in range(len(order)):
        if kept[index]:
            kept[index + 1 :] &= ~covers[index, index + 1 :]
    return order[torch.from_numpy(kept).to(order.device)]


def _overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes, [boxes, boxes]."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    return shared / (area[:, None] + area[None, :] - shared)


def roi_align(
    features: Tensor, regions: Tensor, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Tensor:
    """Return the mean of bilinear samples in each cell of each region, [regions, channels, height, width].

    `regions` are [image, x1, y1, x2, y2] in pixels of the image; `scale` converts them to pixels of `features`. A cell
    has `samples` x `samples` samples. With `samples` 0, it has one per pixel (arXiv 1703.06870, section 3).
    """
    corners = regions[:, 1:] * scale - (0.5 if aligned else 0.0)
    size = corners[:, 2:] - corners[:, :2]
    if not aligned:
        size = size.clamp(min=1.0)
    cells = size.new_tensor([width, height])
    counts = torch.full_like(size, samples) if samples > 0 else (size / cells).ceil().clamp(min=1)
    pooled = features.new_zeros(len(regions), features.shape[1], height, width)
    # One grid_sample handles all regions of an image that have the same numbers of samples.
    kinds, kind_of = torch.cat([regions[:, :1], counts], dim=1).long().unique(dim=0, return_inverse=True)
    for kind, (image, across, down) in enumerate(kinds.tolist()):
        selected = (kind_of == kind).nonzero()[:, 0]
        x = _sample_points(corners[selected, 0], size[selected, 0], width * across)
        y = _sample_points(corners[selected, 1], size[selected, 1], height * down)
        samples_of_cells = _sample(features[image], x, y)
        pooled[selected] = functional.avg_pool2d(samples_of_cells, (down, across))
    return pooled


def _sample_points(begin: Tensor, length: Tensor, count: int) -> Tensor:
    """Return the middles of `count` equal parts of each interval, [regions, count]."""
    return begin[:, None] + length[:, None] * (torch.arange(count, device=begin.device) + 0.5) / count


def _sample(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return bilinear samples, [regions, channels, y, x].

    Up to one pixel outside the image, a sample has the value of the border. Farther outside it is 0.
    """
    rows, columns = features.shape[1:]
    shape = (len(x), y.shape[1], x.shape[1])
    grid = torch.stack(
        [
            (2 * x / max(columns - 1, 1) - 1)[:, None, :].expand(shape),
            (2 * y / max(rows - 1, 1) - 1)[:, :, None].expand(shape),
        ],
        dim=-1,
    )
    # Regions share one image, so they are stacked along the grid's height: one batch entry, one copy of the features.
    flat = grid.reshape(1, shape[0] * shape[1], shape[2], 2).to(features.dtype)
    sampled = functional.grid_sample(features[None], flat, padding_mode="border", align_corners=True)[0]
    inside = ((x >= -1) & (x <= columns))[:, None, :] & ((y >= -1) & (y <= rows))[:, :, None]
    return sampled.unflatten(1, shape[:2]).transpose(0, 1) * inside[:, None]
