"""Copy this rank's pieces to the CPU, and write them with their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from herringbone_contract.checkpoint.manifest import Chunk, File
from herringbone_contract.files import write_all
from herringbone_parallel.core.checkpoint_plan import Described, PlannedFile
from herringbone_parallel.torch.checkpoint.pieces import Piece, as_bytes

# The data is written and summed in such parts, while it is in the processor's cache.
_PART_BYTES = 1 << 20

Staged = dict[int, torch.Tensor]


class Staging:
    """Copies of pieces in the host's memory, which the next save uses again: fresh memory is 8 times slower.

    staged = staging.copy(pieces, numbers)      # {number: contiguous tensor on the CPU}
    """

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def copy(self, pieces: Sequence[Piece], numbers: Sequence[int]) -> Staged:
        """Return copies of these pieces, complete when this returns."""
        buffers: dict[int, torch.Tensor] = {}
        on_device = False
        for number in numbers:
            tensor = pieces[number].tensor.detach()
            buffer = self._buffers.get(number)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                # Only from page-locked memory does a copy run beside the others.
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            buffers[number] = buffer.copy_(tensor, non_blocking=tensor.is_cuda)
            on_device = on_device or tensor.is_cuda
        if on_device:
            torch.cuda.current_stream().synchronize()
        self._buffers = buffers
        return buffers


def in_place(pieces: Sequence[Piece], numbers: Sequence[int]) -> Staged:
    """Return these pieces themselves where they are contiguous and on the CPU: nobody changes them meanwhile."""
    return {number: pieces[number].tensor.detach().cpu().contiguous() for number in numbers}


class Written:
    """The files that a rank has written, and the chunks of each tensor, by the tensor's name."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.chunks: list[tuple[str, Chunk]] = []


def write(
    new_file: Callable[[str], AbstractContextManager[int]],
    planned: Sequence[PlannedFile],
    described: Sequence[Described],
    staged: Staged,
    rank: int,
    host: str,
) -> Written:
    """Write the files of this rank on this host, and return once all of them are complete."""
    written = Written()
    for file in planned:
        with new_file(file.name) as descriptor:
            write_all(descriptor, file.header)
            size = len(file.header)
            for number, start in file.pieces:
                piece = described[number]
                checksum = _write_summed(descriptor, as_bytes(staged[number]))
                written.chunks.append((piece.name, Chunk(file.name, start, piece.offsets, piece.sizes, checksum)))
                size = start + piece.bytes
        head = len(file.header)
        written.files[file.name] = File(size, head, zlib.crc32(file.header), rank, host)
    return written


def _write_summed(descriptor: int, data: memoryview) -> int:
    checksum = 0
    for start in range(0, len(data), _PART_BYTES):
        part = data[start : start + _PART_BYTES]
        checksum = zlib.crc32(part, checksum)
        write_all(descriptor, part)
    return checksum
