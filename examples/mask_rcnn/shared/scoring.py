"""Average precision of boxes and masks, computed by pycocotools from the detections of all ranks."""

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


def describe(picture: int, categories: list[int], output: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert a model's detections in one picture to COCO's format of results: one JSON dict per detection.

    `output` has NumPy arrays: `boxes`, [n, 4] as two corners, `labels` and `scores`, [n], and `masks`, [n, height,
    width] in 0..1.
    """
    boxes = np.array(output["boxes"])
    # COCO's boxes are a corner and a size.
    boxes[:, 2:] -= boxes[:, :2]
    masks = (output["masks"] > 0.5).astype(np.uint8)
    rows = zip(boxes.tolist(), output["labels"].tolist(), output["scores"].tolist(), masks, strict=True)
    results = []
    for box, label, score, mask in rows:
        # pycocotools only encodes arrays in Fortran order.
        runs = rle.encode(np.asfortranarray(mask))
        segmentation = {"size": list(runs["size"]), "counts": runs["counts"].decode("ascii")}
        entry = {"image_id": picture, "category_id": categories[label - 1], "bbox": box, "score": score}
        results.append({**entry, "segmentation": segmentation})
    return results


def average_precision(file: Path, detections: list[dict[str, Any]]) -> dict[str, float]:
    """Return COCO's AP (IoU 0.50 to 0.95) of boxes (`bbox`) and masks (`segm`), each in 0..1."""
    # pycocotools raises IndexError for an empty list of results.
    if not detections:
        return {"bbox": 0.0, "segm": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = COCO()
        truth.dataset = json.loads(file.read_text(encoding="utf-8"))
        for annotation in truth.dataset["annotations"]:
            annotation.setdefault("iscrowd", 0)
        truth.createIndex()
        results = truth.loadRes(detections)
        scores = {}
        for kind in ("bbox", "segm"):
            evaluation = COCOeval(truth, results, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            scores[kind] = max(0.0, float(evaluation.stats[0]))
    return scores
