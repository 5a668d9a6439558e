"""Labelled pictures in a folder per class, or in WebDataset's shards: find them and their classes.

    train/cat/1.jpg  train/dog/7.jpg  ...              the classes are the folders, in the order of their names
    train-0000.tar: 0001.jpg 0001.cls 0002.jpg ...     the classes are the numbers in the .cls files

This module decodes Netpbm (.pgm, .ppm) without a framework. Its users decode all other formats.
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
# A whole header: kind, width, height, largest value, with optional comments between them.
_NETPBM = re.compile(rb"(P[56])\s(?:#.*\n|\s)*(\d+)\s(?:#.*\n|\s)*(\d+)\s(?:#.*\n|\s)*(\d+)\s")


@dataclass(frozen=True)
class Source:
    """One image as a range of bytes in a file, with its name for messages, and its class."""

    path: Path
    offset: int
    size: int | None
    name: str
    label: int

    def read(self) -> bytes:
        """Return the encoded image."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size if self.size is not None else -1)


@dataclass(frozen=True)
class Classes:
    """The number of classes, counted from 0. `names` are the folders' names in that order, or empty for shards."""

    count: int
    names: tuple[str, ...] = ()


def find(folder: Path, classes: Classes | None = None) -> tuple[list[Source], Classes]:
    """List the images of a folder and their classes, in an order that does not depend on the file system.

    Pass the training split's `classes` for the test split. Raises `DataError` for an image of another class, and for a
    folder without images.
    """
    shards = sorted(folder.glob("*.tar"))
    if shards:
        sources = [source for shard in shards for source in _in_shard(shard)]
        names: tuple[str, ...] = ()
    else:
        names = classes.names if classes else _folders(folder)
        sources = _in_folders(folder, names)
    if not sources:
        raise DataError(f"{folder}: no images, neither *.tar nor a folder per class with {', '.join(ENDINGS)}")
    if classes is None:
        return sources, Classes(len(names) or 1 + max(source.label for source in sources), names)
    if unknown := next((source for source in sources if source.label >= classes.count), None):
        raise DataError(
            f"{unknown.name} is of class {unknown.label}, but the training split has classes 0 to {classes.count - 1}"
        )
    return sources, classes


def _folders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def _in_folders(folder: Path, names: tuple[str, ...]) -> list[Source]:
    labels = {name: label for label, name in enumerate(names)}
    if unknown := sorted(set(_folders(folder)) - set(names)):
        raise DataError(
            f"{folder / unknown[0]} is not a class of the training split, which has {', '.join(names) or 'none'}"
        )
    return [
        Source(path, 0, None, str(path), labels[name])
        for name in _folders(folder)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in ENDINGS
    ]


def _in_shard(shard: Path) -> list[Source]:
    """Index a shard by its headers, so that images can be read in any order without unpacking the shard."""
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
                    raise DataError(f"{shard}: {member.name} contains {text[:20]!r}; it must be the number of a class")
                labels[name] = int(text)
    if unpaired := sorted(set(images) ^ set(labels)):
        raise DataError(f"{shard}: {unpaired[0]} has {'no .cls file' if unpaired[0] in images else 'no image'}")
    return [
        Source(shard, member.offset_data, member.size, f"{shard}: {member.name}", labels[name])
        for name, member in images.items()
    ]


@contextmanager
def _opened(shard: Path) -> Iterator[tarfile.TarFile]:
    # "r:" refuses compressed archives: an offset in a compressed file does not lead to the image's bytes.
    try:
        with tarfile.open(shard, "r:") as archive:
            yield archive
    except tarfile.TarError as error:
        raise DataError(f"{shard} is not a tar file, or truncated, or compressed: {error}") from None


def netpbm(content: bytes, name: str) -> Any:
    """Decode a Netpbm image to [height, width, colours] of float32 in 0..1. Return None for another format."""
    header = _NETPBM.match(content)
    if header is None:
        return None
    kind, width, height, largest = header.group(1), *(int(header.group(index)) for index in (2, 3, 4))
    colours = 3 if kind == b"P6" else 1
    pixels = content[header.end() :]
    if len(pixels) != width * height * colours or not 0 < largest < 256:
        raise DataError(f"{name}: {len(pixels)} bytes of pixels for {width} x {height} x {colours}, up to {largest}")
    return np.frombuffer(pixels, np.uint8).reshape(height, width, colours).astype(np.float32) / largest
