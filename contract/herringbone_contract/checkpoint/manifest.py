"""The manifest of a checkpoint, and the names in a folder of checkpoints. Pure.

<folder>/
  <tag>/                            a complete checkpoint: the folder gets this name last, by a rename
    manifest.json                   `Manifest`: every file, and every tensor with the boxes that it was written in
    rank-00000.safetensors          the boxes that rank 0 wrote; a second box of the same tensor is in rank-00000-1
    user_content.pt                 optional: the script's own objects, pickled
  .<tag>.<save>.unfinished/         a save that runs, or whose job was killed
  .<tag>.<save>.replaced/           the earlier checkpoint of this tag, for the moment between two renames
  .<tag>.removed/                   a checkpoint that is being removed
  newest                            the tag of the newest checkpoint
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from herringbone_contract.constants import CHECKPOINT_MANIFEST
from herringbone_contract.errors import ParallelError

MANIFEST = CHECKPOINT_MANIFEST
NEWEST = "newest"
USER_CONTENT = "user_content.pt"
SUFFIX = ".safetensors"
UNFINISHED = ".unfinished"
REPLACED = ".replaced"
REMOVED = ".removed"
FORMAT = "herringbone-checkpoint"
VERSION = 1
# The end of the year 9999, in seconds.
_LAST_TIME = 253402300799

# safetensors' names of types -> bytes of one element. torch's name of each is in the library.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class Chunk(msgspec.Struct, frozen=True):
    """A box of a tensor: its place in the tensor (`offsets`, `sizes`), and its bytes in a file.

    `start` counts from the file's first byte.
    """

    file: str
    start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    crc32: int


class Tensor(msgspec.Struct, frozen=True):
    """The type and shape of a whole tensor, and its chunks, which cover it exactly once."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def bytes_of(self, chunk: Chunk) -> int:
        """Return the bytes of one chunk."""
        return math.prod(chunk.sizes) * ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class File(msgspec.Struct, frozen=True):
    """A file of the checkpoint, and who wrote it. The checksum is of its first `head_bytes` bytes.

    For a file of tensors these bytes are the header; the chunks have checksums of their own.
    """

    bytes: int
    head_bytes: int
    head_crc32: int
    rank: int
    host: str


class Manifest(msgspec.Struct, frozen=True):
    """A checkpoint's manifest. `save` is in the header of each file, so that files of two saves are told apart.

    `extra` holds what is not a tensor: options of the optimizer, numbers of its state, and what the script gave.
    """

    save: str
    tag: str
    time: float
    torch: str
    world_size: int
    mesh: dict[str, int]
    files: dict[str, File]
    tensors: dict[str, Tensor]
    extra: dict[str, Any] = {}
    format: str = FORMAT
    version: int = VERSION

    @property
    def bytes(self) -> int:
        """The bytes of all files, without the manifest."""
        return sum(file.bytes for file in self.files.values())


def to_json(manifest: Manifest) -> bytes:
    """Return the text of `manifest.json`."""
    return msgspec.json.encode(manifest) + b"\n"


def parse(text: bytes, name: str) -> Manifest:
    """Return the manifest in this text; `name` is the file's name for messages.

    Raises `ParallelError` when the text is no manifest, or one that leads out of its folder or its files.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ParallelError(f"{name} is torn or not a checkpoint's manifest: {error}") from error
    if manifest.format != FORMAT or manifest.version != VERSION:
        raise ParallelError(
            f"{name} has the format {manifest.format!r}, version {manifest.version}; this release reads {FORMAT!r},"
            f" version {VERSION}. Read it with the release that wrote it"
        )
    if manifest.world_size < 1 or min(manifest.mesh.values(), default=1) < 1 or not 0 <= manifest.time <= _LAST_TIME:
        raise ParallelError(
            f"{name} is of {manifest.world_size} ranks, the mesh {manifest.mesh} and the time {manifest.time}, which no"
            " save has written; restore the checkpoint"
        )
    for file_name, file in manifest.files.items():
        # Such a name comes from whoever wrote the folder; it must not lead anywhere else.
        if "/" in file_name or "\0" in file_name or file_name.startswith(".") or not file_name:
            raise ParallelError(f"{name} names the file {file_name!r}, which is not a name in this folder")
        if not 0 <= file.rank < manifest.world_size:
            raise ParallelError(f"{name}: {file_name} is of rank {file.rank}, and there are {manifest.world_size}")
        if not 0 <= file.head_bytes <= file.bytes:
            raise ParallelError(f"{name}: {file_name} has a header of {file.head_bytes} in {file.bytes} bytes")
    for tensor_name, tensor in manifest.tensors.items():
        if (problem := _problem(manifest, tensor)) is not None:
            raise ParallelError(f"{name}: the tensor {tensor_name!r} {problem}")
    return manifest


def overlapping(boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Return whether two boxes, each as offsets and sizes, have a common element. Pure.

    >>> overlapping([((0, 0), (2, 4)), ((2, 0), (2, 4))]), overlapping([((0, 0), (2, 4)), ((1, 3), (2, 1))])
    (False, True)
    """
    filled = [box for box in boxes if all(box[1])]
    if len(filled) < 2 or not filled[0][0]:
        return len(filled) > 1
    # Along the dimension with the most boundaries, few boxes are open at a time.
    dim = max(range(len(filled[0][0])), key=lambda dim: len({offsets[dim] for offsets, _ in filled}))
    opened: list[tuple[Sequence[int], Sequence[int]]] = []
    last_end = 0
    for offsets, sizes in sorted(filled, key=lambda box: box[0][dim]):
        begin = offsets[dim]
        # Rows, by far the most frequent case: the next box begins where all boxes before it have ended.
        opened = [] if begin >= last_end else [box for box in opened if box[0][dim] + box[1][dim] > begin]
        last_end = max(last_end, begin + sizes[dim])
        for others, other_sizes in opened:
            bounds = zip(offsets, sizes, others, other_sizes, strict=True)
            if all(first < other + other_size and other < first + size for first, size, other, other_size in bounds):
                return True
        opened.append((offsets, sizes))
    return False


def checked_tag(tag: str) -> str:
    """Return the tag. Raises `ParallelError` for one that is no name of a folder, or hidden, or `newest`."""
    if tag in ("", NEWEST) or tag.startswith(".") or "/" in tag or "\0" in tag:
        raise ParallelError(
            f"{tag!r} cannot be a checkpoint's tag: a tag is the name of a folder, not hidden, and not `{NEWEST}`"
        )
    return tag


def _problem(manifest: Manifest, tensor: Tensor) -> str | None:
    # Every rank of a resume runs this loop over all chunks of all ranks, so it makes no calls for each chunk.
    files, shape = manifest.files, tensor.shape
    item = ITEM_BYTES.get(tensor.dtype)
    if item is None:
        return f"has the unknown type {tensor.dtype!r}"
    if any(size < 0 for size in shape):
        return f"has the shape {list(shape)}"
    dimensions, covered = len(shape), 0
    # Most tensors are saved as whole rows, in order: `rows` counts those of chunks that begin where the last one ended.
    whole, begin, inner, rows = math.prod(shape), (0,) * (len(shape) - 1), shape[1:], 0
    row_values = math.prod(inner)
    for chunk in tensor.chunks:
        offsets, sizes = chunk.offsets, chunk.sizes
        if chunk.file not in files:
            return f"is in {chunk.file!r}, which is none of the checkpoint's files"
        file = files[chunk.file]
        if len(offsets) != dimensions or len(sizes) != dimensions:
            return f"has a chunk of {len(sizes)} dimensions, and {dimensions} itself"
        in_order = dimensions and offsets[0] == rows and offsets[1:] == begin and sizes[1:] == inner
        if in_order and 0 <= sizes[0] <= shape[0] - rows:
            rows += sizes[0]
            count = sizes[0] * row_values
        else:
            count = 1
            for offset, size, length in zip(offsets, sizes, shape, strict=True):
                if offset < 0 or size < 0 or offset + size > length:
                    return f"has a chunk at {list(offsets)} of {list(sizes)} outside {list(shape)}"
                count *= size
        if chunk.start < file.head_bytes or chunk.start + count * item > file.bytes:
            return f"has a chunk outside of {chunk.file}"
        covered += count
    # Of the right sum and without an overlap, the chunks leave no gap: a load would not fill one.
    if covered != whole or (
        (not dimensions or rows != shape[0]) and overlapping([(chunk.offsets, chunk.sizes) for chunk in tensor.chunks])
    ):
        return "is not covered exactly once by its chunks"
    return None
