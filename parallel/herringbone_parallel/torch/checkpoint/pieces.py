"""Parts of tensors: the box that a rank holds of a whole tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from herringbone_contract.errors import ParallelError

Shape = tuple[int, ...]

# safetensors' names of types; `herringbone_contract.checkpoint.manifest.ITEM_BYTES` has their sizes.
TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64,
    "U64": torch.uint64, "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}


class Piece(NamedTuple):
    """A box of a whole tensor: its values, the index at which the box begins, and the whole tensor's shape.

    Piece(weight[4:8], (4, 0), (16, 32))      # rows 4 to 7 of a tensor of 16 x 32
    """

    tensor: torch.Tensor
    offsets: Shape
    shape: Shape


def flat_pieces(values: torch.Tensor, start: int, shape: Sequence[int]) -> list[Piece]:
    """Return the pieces of a whole tensor that a range of its flattened values makes up; the pieces are views.

        flat_pieces(shard, 6, (4, 4))      # values 6 and 7 (the end of row 1), then rows 2 and 3

    A range of n values in d dimensions makes up at most 2 d - 1 boxes.
    """
    whole = tuple(shape)
    flat = values.reshape(-1)
    if not math.prod(whole):
        # No range says whose it is, so every rank has it.
        return [Piece(flat.view(whole), (0,) * len(whole), whole)]
    return [
        Piece(flat[begin : begin + math.prod(sizes)].view(sizes), offsets, whole)
        for begin, offsets, sizes in _boxes(start, start + flat.numel(), whole)
    ]


Layouts = dict[Any, list[Shape]]


def pieces_by_name(tensors: Mapping[str, Any]) -> list[tuple[str, Piece]]:
    """Return the pieces that this rank has of each value of a state.

        pieces_by_name({"weight": dtensor})      # [("weight", Piece(...))]; nothing for a DTensor without local values

    Raises `ParallelError` for a value that is no tensor and no piece.
    """
    # Parameters of one shape, and what the optimizer keeps of them, have one layout; torch computes it in 40 us.
    layouts: Layouts = {}
    # With gradients enabled, `to_local` makes an autograd node for each tensor.
    with torch.no_grad():
        return [(name, piece) for name, value in tensors.items() for piece in pieces_of(name, value, layouts)]


def pieces_of(name: str, value: Any, layouts: Layouts | None = None) -> list[Piece]:
    """Return the pieces that a value of a state consists of on this rank: none for a DTensor without local values.

    `layouts` keeps the boxes of DTensors for the next call. Raises `ParallelError` for a value of another kind.
    """
    if isinstance(value, Piece):
        return _with_values([_checked(name, value)])
    if isinstance(value, list) and all(isinstance(part, Piece) for part in value):
        return _with_values([_checked(name, part) for part in value])
    if not isinstance(value, torch.Tensor):
        raise ParallelError(f"the checkpoint's value {name!r} is a {type(value).__qualname__}, not a tensor or a Piece")
    # A DTensor, recognised by what torch's own checkpoints ask it for: the import of DTensor takes half a second.
    if hasattr(value, "__create_chunk_list__"):
        local = value.to_local()  # type: ignore[attr-defined]
        if hasattr(local, "wait"):
            local = local.wait()
        return _with_values([Piece(local, offsets, tuple(value.shape)) for offsets in _offsets(value, local, layouts)])
    if hasattr(value, "local_shards"):
        # A ShardedTensor, which `FullyShardedDataParallel` makes of its parameters where the script gives no mesh.
        shards = [(shard.tensor, shard.metadata.shard_offsets) for shard in value.local_shards()]
        return _with_values([Piece(tensor, tuple(offsets), tuple(value.size())) for tensor, offsets in shards])
    value = plain(name, value)
    return [Piece(value, (0,) * value.dim(), tuple(value.shape))]


def box(region: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a box.

    >>> box((4, 0), (2, 8))
    (slice(4, 6, None), slice(0, 8, None))
    """
    return tuple(slice(offset, offset + size) for offset, size in zip(region, sizes, strict=True))


def overlap(
    offsets: Sequence[int], sizes: Sequence[int], other_offsets: Sequence[int], other_sizes: Sequence[int]
) -> tuple[Shape, Shape] | None:
    """Return the offsets and sizes of the common part of two boxes, None when there is none.

    >>> overlap((0, 0), (4, 4), (2, 0), (4, 2))
    ((2, 0), (2, 2))
    """
    begin, common = [], []
    for offset, size, other, other_size in zip(offsets, sizes, other_offsets, other_sizes, strict=True):
        first = max(offset, other)
        count = min(offset + size, other + other_size) - first
        if count <= 0:
            return None
        begin.append(first)
        common.append(count)
    return tuple(begin), tuple(common)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    # Through numpy, the only public way to the memory of a tensor; it knows no bfloat16, hence the view as bytes.
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def type_name(name: str, dtype: torch.dtype) -> str:
    """Return safetensors' name of a type. Raises `ParallelError` when it has none."""
    if dtype not in NAMES:
        raise ParallelError(f"the checkpoint's value {name!r} is of {dtype}, which safetensors cannot hold")
    return NAMES[dtype]


def plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its values in memory. Raises `ParallelError` for one whose memory does not hold them so."""
    kind = None
    if tensor.is_meta:
        kind = "on the meta device, and has no values"
    elif tensor.is_nested or tensor.layout is not torch.strided:
        kind = f"{'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}, not dense"
    elif hasattr(tensor, "__tensor_flatten__"):
        kind = f"a {type(tensor).__qualname__}, which is made of other tensors"
    if kind is not None:
        raise ParallelError(f"the checkpoint's value {name!r} is {kind}: save plain dense tensors")
    return tensor.resolve_conj().resolve_neg()


def _offsets(value: Any, local: Any, layouts: Layouts | None) -> list[Shape]:
    """Return where the local values of a DTensor begin in it."""
    # A local tensor of another class may have boxes of its own.
    key = (value.device_mesh, value.placements, value.shape) if type(local) is torch.Tensor else None
    if layouts is None or key is None:
        return [tuple(part.offsets) for part in value.__create_chunk_list__()]
    if key not in layouts:
        layouts[key] = [tuple(part.offsets) for part in value.__create_chunk_list__()]
    return layouts[key]


def _with_values(pieces: list[Piece]) -> list[Piece]:
    """Leave out pieces without values: a rank may have no rows of a small tensor."""
    return [piece for piece in pieces if piece.tensor.numel() or not math.prod(piece.shape)]


def _checked(name: str, piece: Piece) -> Piece:
    sizes = tuple(piece.tensor.shape)
    if len(sizes) != len(piece.shape) or any(
        offset < 0 or offset + size > whole
        for offset, size, whole in zip(piece.offsets, sizes, piece.shape, strict=True)
    ):
        raise ParallelError(
            f"the piece of {name!r} at {list(piece.offsets)} of {list(sizes)} is outside of {list(piece.shape)}"
        )
    return Piece(piece.tensor, tuple(piece.offsets), tuple(piece.shape))


def _boxes(start: int, stop: int, shape: Shape) -> Iterator[tuple[int, Shape, Shape]]:
    """Yield the boxes of a range of the flattened tensor: its first value within the range, offsets and sizes."""
    if start >= stop:
        return
    if not shape:
        yield 0, (), ()
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:
        # All within one row.
        yield from _row(start // inner, start, stop, inner, shape, 0)
        return
    if start < first * inner:
        yield from _row(first - 1, start, first * inner, inner, shape, 0)
    if first < last:
        yield first * inner - start, (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if last * inner < stop:
        yield from _row(last, last * inner, stop, inner, shape, last * inner - start)


def _row(row: int, start: int, stop: int, inner: int, shape: Shape, before: int) -> Iterator[tuple[int, Shape, Shape]]:
    for begin, offsets, sizes in _boxes(start - row * inner, stop - row * inner, shape[1:]):
        yield before + begin, (row, *offsets), (1, *sizes)
