"""Write `digits.npz` with handwritten digits of 28 x 28 pixels: MNIST, or scikit-learn's digits at the same size.

Usage: python examples/launch_post/data.py FOLDER [--digits]
"""

from __future__ import annotations

import argparse
import hashlib
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

MNIST = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


def write_data(folder: Path, *, mnist: bool = True) -> str:
    """Write the file and return the name of its data set: MNIST, or scikit-learn's digits if the fetch fails."""
    if mnist:
        try:
            with urllib.request.urlopen(MNIST, timeout=10) as response:
                content = response.read()
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            print(f"MNIST cannot be fetched ({error}); using scikit-learn's digits instead")
        else:
            if hashlib.sha256(content).hexdigest() != MNIST_SHA256:
                raise SystemExit(f"{MNIST} has changed: its SHA-256 is not {MNIST_SHA256}; pass --digits")
            (folder / "digits.npz").write_bytes(content)
            return "MNIST"
    from sklearn.datasets import load_digits

    digits = load_digits()
    # To look like MNIST, values 0..16 become 0..255, and 8 x 8 pixels become 24 x 24 with a frame of 2.
    images = np.kron(digits.images * (255 / 16), np.ones((3, 3))).round().astype(np.uint8)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    labels = digits.target.astype(np.uint8)
    test = np.arange(len(labels)) % 5 == 0
    np.savez(
        folder / "digits.npz",
        x_train=images[~test],
        y_train=labels[~test],
        x_test=images[test],
        y_test=labels[test],
    )
    return "scikit-learn's digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--digits", action="store_true", help="write scikit-learn's digits without trying to fetch MNIST"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(write_data(arguments.folder, mnist=not arguments.digits))


if __name__ == "__main__":
    main()
