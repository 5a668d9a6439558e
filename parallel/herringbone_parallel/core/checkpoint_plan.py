"""Decide which rank writes which box of which tensor, into which file. Pure.

    every rank describes its pieces -> all ranks have all descriptions -> all make the same plan

Replicas hold the same box. Small ones are written by the first rank that holds them, because buffers of replicas may
differ (the statistics of batch normalisation), and the first replica's belong together. Large ones go to the rank with
the least to write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from herringbone_contract.checkpoint.manifest import ITEM_BYTES, SUFFIX, overlapping
from herringbone_contract.errors import ParallelError

Shape = tuple[int, ...]

_SPREAD_BYTES = 1 << 20


class Described(NamedTuple):
    """A piece without its values."""

    name: str
    dtype: str
    offsets: Shape
    sizes: Shape
    shape: Shape

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * ITEM_BYTES[self.dtype]


class PlannedFile(NamedTuple):
    """A file: its header, and the pieces in it, each by its number in the rank's description and its first byte."""

    name: str
    header: bytes
    pieces: tuple[tuple[int, int], ...]


def assign(descriptions: Sequence[Sequence[Described]]) -> list[list[int]]:
    """Return the numbers of the pieces that each rank writes.

    >>> whole = Described("weight", "F32", (0,), (4,), (4,))
    >>> assign([[whole], [whole]])
    [[0], []]

    Raises `ParallelError` when the ranks disagree about a tensor, or hold too little or too much of one.
    """
    holders: dict[tuple[str, Shape, Shape], list[tuple[int, int]]] = {}
    wholes: dict[str, Described] = {}
    for rank, pieces in enumerate(descriptions):
        for number, piece in enumerate(pieces):
            first = wholes.setdefault(piece.name, piece)
            if (first.shape, first.dtype) != (piece.shape, piece.dtype):
                raise ParallelError(
                    f"ranks have different tensors {piece.name!r}: {first.dtype} {list(first.shape)}, and on rank"
                    f" {rank} {piece.dtype} {list(piece.shape)}"
                )
            holders.setdefault((piece.name, piece.offsets, piece.sizes), []).append((rank, number))
    _check_cover(wholes, holders)
    chosen: list[list[int]] = [[] for _ in descriptions]
    load = [0] * len(descriptions)
    # Boxes of one rank first, so that the others are spread over what is left; then the largest first.
    for ranks in sorted(holders.values(), key=lambda ranks: (len(ranks) > 1, -_bytes(descriptions, ranks))):
        size = _bytes(descriptions, ranks)
        rank, number = min(ranks, key=lambda holder: load[holder[0]]) if size >= _SPREAD_BYTES else ranks[0]
        load[rank] += size
        chosen[rank].append(number)
    return [sorted(numbers) for numbers in chosen]


def files(rank: int, pieces: Sequence[Described], chosen: Sequence[int], save: str) -> list[PlannedFile]:
    """Return the files of one rank. safetensors' names are unique in a file, so a second box has a second file."""
    by_file: list[list[int]] = []
    seen: dict[str, int] = {}
    for number in chosen:
        turn = seen.get(pieces[number].name, 0)
        seen[pieces[number].name] = turn + 1
        if turn == len(by_file):
            by_file.append([])
        by_file[turn].append(number)
    return [
        _file(f"rank-{rank:05d}{f'-{turn}' if turn else ''}", pieces, by_file[turn], save)
        for turn in range(len(by_file))
    ]


def safetensors_file(
    name: str, pieces: Sequence[Described], numbers: Iterable[int], metadata: dict[str, str]
) -> PlannedFile:
    """Return the plan of a safetensors file with these pieces: a header of JSON, and the bytes of one after another."""
    # Wide types first, so that each tensor's bytes begin at a multiple of its element's.
    ordered = sorted(numbers, key=lambda number: -ITEM_BYTES[pieces[number].dtype])
    entries: dict[str, Any] = {"__metadata__": metadata}
    starts, end = [], 0
    for number in ordered:
        piece = pieces[number]
        starts.append((number, end))
        entries[piece.name] = {"dtype": piece.dtype, "shape": piece.sizes, "data_offsets": [end, end + piece.bytes]}
        end += piece.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Spaces at the end align the data; the format allows them.
    text += b" " * (-(8 + len(text)) % 64)
    header = len(text).to_bytes(8, "little") + text
    return PlannedFile(name, header, tuple((number, len(header) + start) for number, start in starts))


def _file(stem: str, pieces: Sequence[Described], numbers: Sequence[int], save: str) -> PlannedFile:
    # By the last three, torch's own `HuggingFaceStorageReader` finds the boxes of whole tensors.
    offsets = {pieces[number].name: {"saved_offsets": pieces[number].offsets} for number in numbers}
    metadata = {"save": save, "DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    return safetensors_file(f"{stem}{SUFFIX}", pieces, numbers, metadata)


def _bytes(descriptions: Sequence[Sequence[Described]], ranks: Sequence[tuple[int, int]]) -> int:
    rank, number = ranks[0]
    return descriptions[rank][number].bytes


def _check_cover(wholes: dict[str, Described], holders: dict[tuple[str, Shape, Shape], list[tuple[int, int]]]) -> None:
    boxes: dict[str, list[tuple[Shape, Shape]]] = {name: [] for name in wholes}
    for name, offsets, sizes in holders:
        boxes[name].append((offsets, sizes))
    for name, whole in wholes.items():
        covered = sum(math.prod(sizes) for _, sizes in boxes[name])
        if covered != math.prod(whole.shape) or overlapping(boxes[name]):
            raise ParallelError(
                f"the ranks hold {covered} values of {name!r}, which has {math.prod(whole.shape)}: pieces are"
                " missing, or overlap. Give every rank's part as a DTensor or a Piece with its offsets"
            )
