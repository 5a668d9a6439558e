"""Write torchvision's small Mask R-CNN with random weights, its losses, gradients and detections, for other frameworks.

Run it in a Python with torch and torchvision: `mask_rcnn_reference.py FILE`. Images are of several sizes, and one has
no object. So that the losses do not depend on random numbers, the model learns from all boxes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "mask_rcnn"
sys.path[:0] = [str(EXAMPLE / "src")]
from models import build  # noqa: E402  the line above finds it

CLASSES = 3
# Rows and columns. The first three keep their size, with padding; the last one is resized to 40 x 64.
SHAPES = [(64, 64), (64, 48), (64, 64), (50, 80)]


def image(number: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    height, width = SHAPES[number]
    count = 0 if number == 2 else 2
    corners = random.uniform(2, 20, (count, 2))
    boxes = np.concatenate([corners, corners + random.uniform(10, 25, (count, 2))], axis=1)
    y, x = np.mgrid[:height, :width] + 0.5
    masks = [(x > left) & (x < right) & (y > top) & (y < bottom) for left, top, right, bottom in boxes]
    return {
        "pixels": random.integers(0, 256, (height, width, 3), dtype=np.uint8),
        "boxes": boxes,
        "labels": random.integers(1, CLASSES + 1, count),
        "masks": np.array(masks, np.uint8).reshape(count, height, width),
    }


def main(file: Path) -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    random = np.random.default_rng(3)
    model = build("small", CLASSES).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The scores of untrained layers hardly differ, and their offsets and biases are almost 0.
            if name.startswith("rpn.head"):
                parameter += 0.05 * torch.randn_like(parameter)
            elif parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    for sampler in (model.rpn.fg_bg_sampler, model.roi_heads.fg_bg_sampler):
        sampler.batch_size_per_image = 10**6
    images = [image(number, random) for number in range(len(SHAPES))]
    pixels = [torch.from_numpy(values["pixels"]).permute(2, 0, 1).double() / 255 for values in images]
    targets = [{name: torch.from_numpy(values[name]) for name in ("boxes", "labels", "masks")} for values in images[:3]]
    losses = model.train()(pixels[:3], targets)
    sum(losses.values()).backward()
    result = {f"image.{number}.{name}": value for number, values in enumerate(images) for name, value in values.items()}
    result |= {f"loss.{name}": value.detach().numpy() for name, value in losses.items()}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        result[f"weight.{number:03}.{name}"] = parameter.detach().numpy()
        result[f"gradient.{number:03}"] = parameter.grad.numpy()
    with torch.no_grad():
        for number, output in enumerate(model.eval()(pixels)):
            result |= {f"output.{number}.{name}": value.numpy() for name, value in output.items()}
    # The order of the weights of the full model, and their shapes without values.
    with torch.device("meta"):
        full = build("resnet50", CLASSES)
    result["shapes"] = np.array(json.dumps([list(parameter.shape) for parameter in full.parameters()]))
    np.savez(file, **result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
