"""Labelled images from a folder per class, or from WebDataset's shards, without torchvision.

    train/cat/1.jpg  train/dog/7.jpg  ...              the classes are the folders, in the order of their names
    train-0000.tar: 0001.jpg 0001.cls 0002.jpg ...     the classes are the numbers in the .cls files

Netpbm (.pgm, .ppm) is read here; for every other format there has to be Pillow.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from common.data import DataError
from torch.nn import functional
from torch.utils.data import Dataset

ENDINGS = (".jpg", ".jpeg", ".png", ".pgm", ".ppm", ".webp")
# A whole header: kind, width, height, greatest value; comments may stand between them.
_NETPBM = re.compile(rb"(P[56])\s(?:#.*\n|\s)*(\d+)\s(?:#.*\n|\s)*(\d+)\s(?:#.*\n|\s)*(\d+)\s")


@dataclass(frozen=True)
class Source:
    """Where one image lies: a part of a file, what it is called there, and its class."""

    path: Path
    offset: int
    size: int | None
    name: str
    label: int


@dataclass(frozen=True)
class Classes:
    """How many there are, numbered from 0; `names` are those of the folders, in that order, and empty for shards."""

    count: int
    names: tuple[str, ...] = ()


def find(folder: Path, classes: Classes | None = None) -> tuple[list[Source], Classes]:
    """List the images of a folder, in an order that does not depend on the disk, and their classes.

    With `classes`, those of the training, the images belong to them. Raises `DataError` for an image that does not,
    and where there is none.
    """
    shards = sorted(folder.glob("*.tar"))
    if shards:
        found = [source for shard in shards for source in _in_shard(shard)]
        names: tuple[str, ...] = ()
    else:
        names = classes.names if classes else _folders(folder)
        found = _in_folders(folder, names)
    if not found:
        raise DataError(f"{folder}: no images, neither *.tar nor a folder per class with {', '.join(ENDINGS)}")
    if classes is None:
        return found, Classes(len(names) or 1 + max(source.label for source in found), names)
    if strange := next((source for source in found if source.label >= classes.count), None):
        raise DataError(
            f"{strange.name} is of class {strange.label}, and the training has classes 0 to {classes.count - 1}"
        )
    return found, classes


def _folders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def _in_folders(folder: Path, names: tuple[str, ...]) -> list[Source]:
    labels = {name: label for label, name in enumerate(names)}
    if strange := sorted(set(_folders(folder)) - set(names)):
        raise DataError(f"{folder / strange[0]}: no class of the training, which has {', '.join(names) or 'none'}")
    return [
        Source(path, 0, None, str(path), labels[name])
        for name in _folders(folder)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in ENDINGS
    ]


def _in_shard(shard: Path) -> list[Source]:
    """Index a shard by its headers: images are read where they lie, in any order."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    with _opened(shard) as archive:
        for member in archive:
            name, ending = member.name.rsplit(".", 1) if "." in member.name else (member.name, "")
            if f".{ending.lower()}" in ENDINGS:
                images[name] = member
            elif ending == "cls":
                text = archive.extractfile(member).read().strip()
                if not text.isdigit():
                    raise DataError(f"{shard}: {member.name} is {text[:20]!r}, and has to be the number of a class")
                labels[name] = int(text)
    if alone := sorted(set(images) ^ set(labels)):
        raise DataError(f"{shard}: {alone[0]} has {'no .cls' if alone[0] in images else 'no image'} beside it")
    return [
        Source(shard, member.offset_data, member.size, f"{shard}: {member.name}", labels[name])
        for name, member in images.items()
    ]


@contextmanager
def _opened(shard: Path) -> Iterator[tarfile.TarFile]:
    # Images are read where they lie, so that a shard is not compressed.
    try:
        with tarfile.open(shard, "r:") as archive:
            yield archive
    except tarfile.TarError as error:
        raise DataError(f"{shard}: no tar, or cut short, or compressed: {error}") from None


def decode(content: bytes, name: str) -> torch.Tensor:
    """Return an image as [colours, height, width] in 0..1."""
    if header := _NETPBM.match(content):
        kind, width, height, greatest = header.group(1), *(int(header.group(place)) for place in (2, 3, 4))
        colours = 3 if kind == b"P6" else 1
        pixels = content[header.end() :]
        if len(pixels) != width * height * colours or not 0 < greatest < 256:
            raise DataError(
                f"{name}: {len(pixels)} bytes of pixels for {width} x {height} x {colours}, up to {greatest}"
            )
        flat = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        return flat.view(height, width, colours).permute(2, 0, 1).float() / greatest
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{name}: only Netpbm is read without Pillow; list `pillow` in requirements.txt") from None
    import numpy as np

    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.array(image.convert("RGB"))
    # What Pillow raises depends on the format, and on where the file breaks off.
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{name}: no image that Pillow can read: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


class Images(Dataset):
    """Images of one size by number, and of these `classes` where given.

    `seed` crops and flips at random, the same ones whatever the number of ranks.
    """

    def __init__(self, folder: Path, *, size: int, seed: int | None = None, classes: Classes | None = None) -> None:
        self._sources, self.classes = find(folder, classes)
        self._size, self._seed, self._epoch = size, seed, 0
        self.labels = torch.tensor([source.label for source in self._sources])

    def __len__(self) -> int:
        return len(self._sources)

    def begin(self, epoch: int) -> None:
        """Crop and flip otherwise than in other epochs."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = self._sources[index]
        with source.path.open("rb") as file:
            file.seek(source.offset)
            content = file.read(source.size if source.size is not None else -1)
        image = decode(content, source.name)
        if self._seed is not None:
            image = augment(image, torch.Generator().manual_seed(hash((self._seed, self._epoch, index)) % (1 << 62)))
        return resize(image, self._size), self.labels[index]


def resize(image: torch.Tensor, size: int) -> torch.Tensor:
    """Scale the shorter side to `size`, and cut out the middle."""
    height, width = image.shape[1:]
    if (height, width) == (size, size):
        return image
    factor = size / min(height, width)
    shape = (max(size, round(height * factor)), max(size, round(width * factor)))
    scaled = functional.interpolate(image[None], shape, mode="bilinear", antialias=True)[0]
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return scaled[:, top : top + size, left : left + size]


def augment(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Cut out a square of half to all of the shorter side, somewhere, and mirror it half of the time."""
    height, width = image.shape[1:]
    share, down, right, mirror = torch.rand(4, generator=generator).tolist()
    side = max(1, round(min(height, width) * (0.5 + share / 2)))
    top, left = round(down * (height - side)), round(right * (width - side))
    cut = image[:, top : top + side, left : left + side]
    return cut.flip(2) if mirror < 0.5 else cut
