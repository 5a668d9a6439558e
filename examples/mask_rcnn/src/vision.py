"""torchvision, also where its compiled operations were built for another torch.

The wheel on PyPI is built for CUDA; beside a CPU build of torch its library cannot be loaded, and `import torchvision`
fails. What Mask R-CNN needs of that library, nms and roi_align, is then computed here with torch's own operations.
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
    """Make `import torchvision` work, and say whether its compiled operations are used. It comes before the import."""
    global _declared
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchvision is missing: requirements.txt beside this script names it")
    if any(map(_loads, Path(found.origin).parent.glob("_C*.so"))):
        return True
    if _declared is None:
        # The import looks for these two by name. What holds the library holds the operations.
        _declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.impl("nms", nms, "CompositeExplicitAutograd")
    # It asks for the whole library, where only nms is called.
    importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None  # type: ignore[attr-defined]
    # What stands in for roi_align there takes a hundred times as long, or minutes to compile.
    importlib.import_module("torchvision.ops.roi_align")._roi_align = roi_align  # type: ignore[attr-defined]
    return False


def _loads(library: Path) -> bool:
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the numbers of the boxes that overlap none with a higher score by more, the highest score first.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    order = scores.argsort(descending=True, stable=True)
    covers = (_overlaps(boxes[order]) > iou_threshold).cpu().numpy()
    kept = torch.ones(len(order), dtype=torch.bool).numpy()
    for place in range(len(order)):
        if kept[place]:
            kept[place + 1 :] &= ~covers[place, place + 1 :]
    return order[torch.from_numpy(kept).to(order.device)]


def _overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over the union of each two boxes."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    return shared / (area[:, None] + area[None, :] - shared)


def roi_align(
    features: Tensor, regions: Tensor, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Tensor:
    """Return [regions, channels, height, width]: the mean of bilinear samples in each cell of each region.

    `regions` are [image, x1, y1, x2, y2], in pixels of the image, of which `features` has `scale` as many. A cell has
    `samples` x `samples`, or with 0 one a pixel (arXiv 1703.06870, section 3).
    """
    corners = regions[:, 1:] * scale - (0.5 if aligned else 0.0)
    size = corners[:, 2:] - corners[:, :2]
    if not aligned:
        size = size.clamp(min=1.0)
    cells = size.new_tensor([width, height])
    counts = torch.full_like(size, samples) if samples > 0 else (size / cells).ceil().clamp(min=1)
    pooled = features.new_zeros(len(regions), features.shape[1], height, width)
    # Regions of an image that are sampled alike are sampled at once.
    kinds, kind_of = torch.cat([regions[:, :1], counts], dim=1).long().unique(dim=0, return_inverse=True)
    for kind, (image, across, down) in enumerate(kinds.tolist()):
        chosen = (kind_of == kind).nonzero()[:, 0]
        x = _places(corners[chosen, 0], size[chosen, 0], width * across)
        y = _places(corners[chosen, 1], size[chosen, 1], height * down)
        sampled = _sample(features[image], x, y)
        pooled[chosen] = functional.avg_pool2d(sampled, (down, across))
    return pooled


def _places(begin: Tensor, length: Tensor, count: int) -> Tensor:
    """Return the middles of `count` equal parts, [regions, count]."""
    return begin[:, None] + length[:, None] * (torch.arange(count, device=begin.device) + 0.5) / count


def _sample(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return [regions, channels, y's, x's]: 0 beyond a pixel outside, the border's values within it."""
    rows, columns = features.shape[1:]
    shape = (len(x), y.shape[1], x.shape[1])
    grid = torch.stack(
        [
            (2 * x / max(columns - 1, 1) - 1)[:, None, :].expand(shape),
            (2 * y / max(rows - 1, 1) - 1)[:, :, None].expand(shape),
        ],
        dim=-1,
    )
    flat = grid.reshape(1, shape[0] * shape[1], shape[2], 2).to(features.dtype)
    sampled = functional.grid_sample(features[None], flat, padding_mode="border", align_corners=True)[0]
    inside = ((x >= -1) & (x <= columns))[:, None, :] & ((y >= -1) & (y <= rows))[:, :, None]
    return sampled.unflatten(1, shape[:2]).transpose(0, 1) * inside[:, None]
