"""Write and read a checkpoint of whole arrays in the one form (`herringbone_contract.checkpoint`), by one process."""

from __future__ import annotations

import importlib
import io
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from herringbone_contract.checkpoint.manifest import Chunk, File, Manifest, Tensor, checked_tag
from herringbone_contract.checkpoint.publication import clean, publish, unfinished
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import open_regular
from herringbone_parallel.core.checkpoint_plan import Described, files

# NumPy's names -> safetensors' names.
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "float32": "F32", "int64": "I64", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def write(folder: Path, tag: str, arrays: Arrays, extra: Any, *, ranks: int, library: str) -> None:
    """Write the checkpoint `<folder>/<tag>`: when this returns it is complete, before it is absent.

    `ranks` are those of the job, and `library` is the framework with its release, for people. Raises `ParallelError`
    for an array of a type that the form has not.
    """
    save, host = secrets.token_hex(8), os.environ.get("SM_CURRENT_HOST") or socket.gethostname()
    wholes = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    described = []
    for name, array in wholes.items():
        if array.dtype.name not in _NAMES:
            raise ParallelError(f"the checkpoint's value {name!r} is of {array.dtype}, which safetensors cannot hold")
        described.append(
            Described(name, _NAMES[array.dtype.name], (0,) * array.ndim, tuple(array.shape), tuple(array.shape))
        )
    path = unfinished(folder, checked_tag(tag), save)
    path.mkdir(parents=True)
    try:
        written, tensors = {}, {}
        for file in files(0, described, range(len(described)), save):
            with (path / file.name).open("xb") as stream:
                stream.write(file.header)
                for number, start in file.pieces:
                    piece = described[number]
                    data = wholes[piece.name].reshape(-1).view(np.uint8).data
                    stream.write(data)
                    chunk = Chunk(file.name, start, piece.offsets, piece.sizes, zlib.crc32(data))
                    tensors[piece.name] = Tensor(piece.dtype, piece.shape, (chunk,))
                size = stream.tell()
                stream.flush()
                os.fsync(stream.fileno())
            written[file.name] = File(size, len(file.header), zlib.crc32(file.header), 0, host)
        paths = {name: name.split("/", 1) for name in wholes}
        kept = {"paths": paths, "values": {}, "groups": {}, "extra": extra}
        publish(path, folder, Manifest(save, tag, time.time(), library, ranks, {}, written, tensors, kept))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    clean(folder)


def read(path: Path, manifest: Manifest) -> dict[str, np.ndarray[Any, Any]]:
    """Return all arrays of a checkpoint that `write` has written. Raises `ParallelError` for a damaged one."""
    types = {kind: name for name, kind in _NAMES.items()}
    arrays = {}
    for name, tensor in manifest.tensors.items():
        [chunk] = tensor.chunks
        data = bytearray(tensor.bytes)
        with io.BufferedReader(open_regular(path / chunk.file)) as stream:
            stream.seek(chunk.start)
            count = stream.readinto(data)
        if count != len(data) or zlib.crc32(data) != chunk.crc32:
            raise ParallelError(f"{path / chunk.file} is damaged: the checksum differs of {name}. Give an older `tag`")
        arrays[name] = np.frombuffer(data, dtype_of(types[tensor.dtype])).reshape(tensor.shape)
    return arrays


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's type of a name; TensorFlow brings the package of those that NumPy has not."""
    if name.startswith(("bfloat", "float8")):
        name = getattr(importlib.import_module("ml_dtypes"), name)
    return np.dtype(name)
