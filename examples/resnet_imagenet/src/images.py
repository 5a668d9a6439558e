"""Labelled images from a folder per class or from WebDataset's shards, without torchvision.

`common.pictures` finds the images and decodes Netpbm (.pgm, .ppm). All other formats need Pillow.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from common.data import DataError
from common.pictures import Classes, find, netpbm
from torch.nn import functional
from torch.utils.data import Dataset


def decode(content: bytes, name: str) -> torch.Tensor:
    """Return an image as [colours, height, width] in 0..1. Raises `DataError` if it cannot be decoded."""
    if (array := netpbm(content, name)) is not None:
        return torch.from_numpy(array).permute(2, 0, 1)
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{name}: formats other than Netpbm need Pillow; list `pillow` in requirements.txt") from None
    import numpy as np

    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.array(image.convert("RGB"))
    # Pillow's exception depends on the format, and on the offset at which the file is damaged.
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{name}: Pillow cannot read this image: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


class Images(Dataset):
    """Images of one size by number. Pass the training split's `classes` for the test split.

    With `seed`, images are cropped and flipped at random. The result does not depend on the number of ranks.
    """

    def __init__(self, folder: Path, *, size: int, seed: int | None = None, classes: Classes | None = None) -> None:
        self._sources, self.classes = find(folder, classes)
        self._size, self._seed, self._epoch = size, seed, 0
        self.labels = torch.tensor([source.label for source in self._sources])

    def __len__(self) -> int:
        return len(self._sources)

    def begin(self, epoch: int) -> None:
        """Set the epoch, which selects the random crops and flips."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = self._sources[index]
        image = decode(source.read(), source.name)
        if self._seed is not None:
            # A tuple of integers has the same hash in every process; only hashes of strings are randomized.
            image = augment(image, torch.Generator().manual_seed(hash((self._seed, self._epoch, index)) % (1 << 62)))
        return resize(image, self._size), self.labels[index]


def resize(image: torch.Tensor, size: int) -> torch.Tensor:
    """Scale the shorter side to `size`, and crop the centre."""
    height, width = image.shape[1:]
    if (height, width) == (size, size):
        return image
    factor = size / min(height, width)
    shape = (max(size, round(height * factor)), max(size, round(width * factor)))
    scaled = functional.interpolate(image[None], shape, mode="bilinear", antialias=True)[0]
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return scaled[:, top : top + size, left : left + size]


def augment(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Crop a random square, with a side of half to all of the shorter side, and mirror it with probability 1/2."""
    height, width = image.shape[1:]
    share, down, right, mirror = torch.rand(4, generator=generator).tolist()
    side = max(1, round(min(height, width) * (0.5 + share / 2)))
    top, left = round(down * (height - side)), round(right * (width - side))
    cut = image[:, top : top + side, left : left + side]
    return cut.flip(2) if mirror < 0.5 else cut
