"""Average precision of boxes and masks by pycocotools, over the detections of all ranks."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor


def describe(picture: int, categories: list[int], found: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return what a model found in a picture as COCO's results: one dict a detection, fit for JSON."""
    boxes = found["boxes"].clone()
    boxes[:, 2:] -= boxes[:, :2]
    masks = (found["masks"][:, 0] > 0.5).byte().cpu().numpy()
    rows = zip(boxes.tolist(), found["labels"].tolist(), found["scores"].tolist(), masks, strict=True)
    results = []
    for box, label, score, mask in rows:
        run = rle.encode(np.asfortranarray(mask))
        segmentation = {"size": list(run["size"]), "counts": run["counts"].decode("ascii")}
        entry = {"image_id": picture, "category_id": categories[label - 1], "bbox": box, "score": score}
        results.append({**entry, "segmentation": segmentation})
    return results


def average_precision(file: Path, detections: list[dict[str, Any]]) -> dict[str, float]:
    """Return COCO's AP (IoU 0.50 to 0.95) of boxes (`bbox`) and masks (`segm`), each in 0..1."""
    if not detections:
        return {"bbox": 0.0, "segm": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells its progress
        truth = COCO()
        truth.dataset = json.loads(file.read_text(encoding="utf-8"))
        for annotation in truth.dataset["annotations"]:
            annotation.setdefault("iscrowd", 0)
        truth.createIndex()
        found = truth.loadRes(detections)
        scores = {}
        for kind in ("bbox", "segm"):
            evaluation = COCOeval(truth, found, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            scores[kind] = max(0.0, float(evaluation.stats[0]))
    return scores
