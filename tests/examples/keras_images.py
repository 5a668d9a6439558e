"""Print the images of `examples/keras_resnet` as JSON. Run this file in a Python with TensorFlow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import tensorflow as tf


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def message_of(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except (images.DataError, tf.errors.OpError) as error:
        return str(error)
    return "nothing"


def main(folder: Path) -> None:
    shades = np.arange(256, dtype=np.uint8).reshape(16, 16)
    written(folder, "good/cat/1.pgm", b"P5 16 16 255\n" + shades.tobytes())
    written(folder, "good/dog/1.pgm", b"P5 16 16 255\n" + bytes(256))
    plain = images.Images(folder / "good", size=16)
    [(batch, labels)] = list(plain.batches([1, 0], 2))
    halved = next(iter(images.Images(folder / "good", size=8).batches([0], 1)))[0]
    cropped = [
        next(iter(images.Images(folder / "good", size=8, seed=3).batches([0], 1, epoch=epoch)))[0].numpy()
        for epoch in (0, 0, 1)
    ]
    png = tf.io.encode_png(tf.repeat(shades[..., None], 3, axis=2)).numpy()
    written(folder, "coloured/cat/1.png", png)
    same = next(iter(images.Images(folder / "coloured", size=16).batches([0], 1)))[0].numpy()
    written(folder, "mixed/cat/1.png", png)
    written(folder, "mixed/cat/2.pgm", b"P5 16 16 255\n" + shades.tobytes())
    written(folder, "broken/cat/1.png", png[:50])
    answers = {
        "labels": labels.numpy().tolist(),
        "equal": bool(np.allclose(batch[1, ..., 0], shades / 255, atol=1e-7)),
        "halved": [list(halved.shape), round(float(tf.reduce_mean(halved)), 2)],
        "crops": [bool((cropped[0] == cropped[1]).all()), bool((cropped[0] == cropped[2]).all())],
        "png": [list(same.shape), bool(np.allclose(same[0, ..., 0], shades / 255, atol=1e-6))],
        "mixed": message_of(lambda: list(images.Images(folder / "mixed", size=16).batches([0, 1], 2))),
        "broken": message_of(lambda: images.Images(folder / "broken", size=16)),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
