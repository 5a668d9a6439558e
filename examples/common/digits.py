"""Scikit-learn's 1,797 handwritten digits as one folder per class. Every fifth digit belongs to the test split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def write(folder: Path) -> None:
    """Write all digits as 8 x 8 images in 17 shades, such as `train/3/0017.pgm` and `test/3/0020.pgm`."""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / ("test" if number % 5 == 0 else "train") / str(label) / f"{number:04}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"P5 8 8 16\n" + image.astype(np.uint8).tobytes())
