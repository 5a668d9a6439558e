"""Labelled pictures in a folder per class, or in WebDataset's shards: where each lies, and of what class it is.

    train/cat/1.jpg  train/dog/7.jpg  ...              the classes are the folders, in the order of their names
    train-0000.tar: 0001.jpg 0001.cls 0002.jpg ...     the classes are the numbers in the .cls files

Netpbm (.pgm, .ppm) is read here, without a framework; other formats are whoever reads them's.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.data import DataError

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

    def read(self) -> bytes:
        """Return the bytes of the image's own file."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size if self.size is not None else -1)


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


def netpbm(content: bytes, name: str) -> Any:
    """Return an image as an array [height, width, colours] of float32 in 0..1; None for another format."""
    header = _NETPBM.match(content)
    if header is None:
        return None
    kind, width, height, greatest = header.group(1), *(int(header.group(place)) for place in (2, 3, 4))
    colours = 3 if kind == b"P6" else 1
    pixels = content[header.end() :]
    if len(pixels) != width * height * colours or not 0 < greatest < 256:
        raise DataError(f"{name}: {len(pixels)} bytes of pixels for {width} x {height} x {colours}, up to {greatest}")
    return np.frombuffer(pixels, np.uint8).reshape(height, width, colours).astype(np.float32) / greatest
