"""Compare the Mask R-CNN on MXNet with torchvision's: `mask_rcnn_on_mxnet.py FILE` of `mask_rcnn_reference.py`.

The last line is JSON: the largest differences of losses, gradients and detections, relative to the largest value; those
of an optimizer's steps to their formula; and what the script refuses.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES / "mask_rcnn" / folder) for folder in ("src_mxnet", "shared")] + [str(EXAMPLES)]
import models  # noqa: E402  the line above finds it
import pasting  # noqa: E402
import sizes  # noqa: E402
import train  # noqa: E402
from common.for_mxnet import updates  # noqa: E402


def difference(values: Any, expected: Any) -> float:
    """Return the largest difference in parts of the largest expected value; infinity for another shape."""
    if values.shape != expected.shape:
        return float("inf")
    return float(np.abs(values - expected).max() / np.abs(expected).max())


def compared(reference: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of the model with the reference's weights, in fp64."""
    images: list[dict[str, Any]] = [{} for _ in range(4)]
    for key, value in reference.items():
        if key.startswith("image."):
            images[int(key.split(".")[1])][key.split(".")[2]] = value
    # Larger samples than there are boxes: no random number has an effect.
    small = dataclasses.replace(sizes.SIZES["small"], region_samples=10**6, box_samples=10**6)
    model = models.MaskRCNN(small, classes=3, device=mx.cpu())
    model.initialize()
    model.cast("float64")
    weights = list(model.collect_params().values())
    expected = [value for key, value in reference.items() if key.startswith("weight.")]
    assert [weight.shape for weight in weights] == [value.shape for value in expected]
    for weight, value in zip(weights, expected, strict=True):
        weight.set_data(mx.nd.array(value, dtype="float64"))
    with autograd.record():
        losses = model.losses_of([image["pixels"] for image in images[:3]], images[:3], seed=0)
        total = sum(losses.values())
    total.backward()
    gradients = [
        difference(weight.grad().asnumpy(), reference[f"gradient.{number:03}"]) for number, weight in enumerate(weights)
    ]
    outputs = {}
    for number, image in enumerate(images):
        output = model.detect(image["pixels"])
        output["masks"] = pasting.pasted(output["masks"], output["boxes"], *image["pixels"].shape[:2])[:, None]
        for name, values in output.items():
            outputs[f"{name} {number}"] = difference(values, reference[f"output.{number}.{name}"])
    return {
        "losses": {
            name: difference(loss.asnumpy().reshape(()), reference[f"loss.{name}"]) for name, loss in losses.items()
        },
        "gradient": max(gradients),
        "outputs": outputs,
    }


def full_shapes() -> list[list[int]]:
    """Return the shapes of all weights of the full model for 3 classes, which get no values here."""
    model = models.MaskRCNN(sizes.SIZES["resnet50"], classes=3, device=mx.cpu())
    return [list(weight.shape) for weight in model.collect_params().values()]


def optimized() -> float:
    """Return the largest difference of steps of LARS to its formula in NumPy, with clipped gradients in fp64."""
    random, layer = np.random.default_rng(0), gluon.nn.Dense(3, in_units=4)
    layer.initialize()
    layer.cast("float64")
    settings = train.parse(["--optimizer=lars", "--lr=0.5", "--weight-decay=0.01", "--trust=0.1"])
    trainer = updates.build_trainer(settings, train.world.World(0, 1, mx.cpu()), layer)
    expected = [weight.data().asnumpy() for weight in (layer.weight, layer.bias)]
    velocities = [0.0, 0.0]
    for factor in (0.5, 1.0, 0.25):
        with autograd.record():
            # Larger than the limit of the clipping.
            loss = 1000 * layer(mx.nd.array(random.normal(size=(2, 4)), dtype="float64")).square().sum()
        loss.backward()
        gradients = [weight.grad() for weight in (layer.weight, layer.bias)]
        updates.clip(gradients, 2.0)
        trainer.set_learning_rate(0.5 * factor)
        trainer.update(2)
        arrays = [gradient.asnumpy() / 2 for gradient in gradients]
        # The clipped sum of two parts has the norm 2, so their mean has the norm 1.
        assert abs(sum((array**2).sum() for array in arrays) - 1) < 1e-12
        sizes_of = [np.linalg.norm(values) for values in (expected[0], arrays[0])]
        ratio = 0.1 * sizes_of[0] / (sizes_of[1] + 0.01 * sizes_of[0])
        velocities[0] = 0.9 * velocities[0] + 0.5 * factor * ratio * (arrays[0] + 0.01 * expected[0])
        velocities[1] = 0.9 * velocities[1] + 0.5 * factor * arrays[1]
        expected = [values - velocity for values, velocity in zip(expected, velocities, strict=True)]
        for gradient in gradients:
            gradient[:] = 0
    pairs = zip((layer.weight, layer.bias), expected, strict=True)
    return max(float(np.abs(weight.data().asnumpy() - values).max()) for weight, values in pairs)


def refused(*arguments: str) -> str:
    """Return the message with which the script refuses settings."""
    training = train.Training.__new__(train.Training)
    training.settings, training.world = train.parse(list(arguments)), train.world.World(0, 1, mx.cpu())
    try:
        training.build_model(3)
    except ValueError as error:
        return str(error)
    return "nothing"


def main(file: Path) -> None:
    result = {
        **compared(dict(np.load(file))),
        "shapes": full_shapes(),
        "lars": optimized(),
        "refused": [refused("--precision=bf16"), refused("--workers=2")],
    }
    os.environ["SM_CHANNEL_WEIGHTS"] = str(file.parent)
    result["refused"].append(refused())
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
