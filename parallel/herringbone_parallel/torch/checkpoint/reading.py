"""Read a checkpoint: any box of any tensor, with its checksum checked, and without unpickling."""

from __future__ import annotations

import io
import math
import mmap
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from herringbone_contract.checkpoint.manifest import USER_CONTENT, Chunk, Manifest, Tensor
from herringbone_contract.checkpoint.verification import (
    Listed,
    checkpoint_path,
    missing,
    newest_complete,
    read_manifest,
)
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import open_regular
from herringbone_parallel.torch.checkpoint.pieces import TYPES, Piece, box, overlap
from herringbone_parallel.torch.checkpoint.states import decode, nest


class DamagedError(ParallelError):
    """The checkpoint `tag` has other content than was saved."""

    def __init__(self, tag: str, text: str) -> None:
        super().__init__(text)
        self.tag = tag


def pass_over(error: Exception, passed: dict[str, str], gather: Callable[[Any], list[Any]]) -> None:
    """Add the checkpoints that some rank has found damaged to `passed`, on all ranks; where none has, raise the error.

    Every rank must call: each has an error, its own or that of another rank.
    """
    own = (error.tag, str(error)) if isinstance(error, DamagedError) else None
    damages = [damage for damage in gather(own) if damage is not None]
    if not damages:
        raise error
    passed.update(damages)


def find(folder: Path, tag: str | None = None) -> Path:
    """Return the folder of a checkpoint: of this tag, or the newest complete one.

    A newest one whose files are not all there counts as absent, with a warning; so a job goes on from the one before.
    Raises `ParallelError` when there is none.
    """
    return checkpoint_path(folder, tag) if tag is not None else _newest(folder).path


class Reader:
    """A checkpoint of one folder; files are mapped, so only what is asked for is read.

        reader = Reader(find(Path(os.environ["SM_CHECKPOINT_DIR"])))
        reader.tensor("model.head.weight")

    Raises `ParallelError` when the manifest or files are missing, torn or of another save; and, where a value is read,
    when its checksum differs. Tensors that are returned may be the mapped file. Who changes one in place gets a private
    copy of its pages: the file stays as it is, but this reader returns the changed values from then on.
    """

    def __init__(self, path: Path) -> None:
        self._open(path, read_manifest(path), path.name, lambda name: open_regular(path / name))
        if problems := missing(path, self.manifest):
            others = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
            raise DamagedError(self.tag, problems[0].text + others)

    @classmethod
    def find(cls, folder: Path, tag: str | None = None, passed: Mapping[str, str] = MappingProxyType({})) -> Reader:
        """Return `Reader(find(folder, tag))`, for which the manifest and the headers are read once, not twice.

        Without a tag, the newest one that is not among `passed`, which map tags to reasons.
        """
        if tag is not None:
            return cls(checkpoint_path(folder, tag))
        newest = _newest(folder, passed)
        assert newest.manifest is not None
        reader = cls.__new__(cls)
        path = newest.path
        reader._open(path, newest.manifest, newest.tag, lambda name: open_regular(path / name))
        return reader

    @classmethod
    def of_files(cls, path: Path, manifest: Manifest, tag: str, open_file: Callable[[str], io.FileIO]) -> Reader:
        """Return the reader of a checkpoint whose files are elsewhere; each is opened when its first value is read.

        `path` is for messages. `open_file` raises `DamagedError` for a file that is missing or another one.
        """
        reader = cls.__new__(cls)
        reader._open(path, manifest, tag, open_file)
        return reader

    def _open(self, path: Path, manifest: Manifest, tag: str, open_file: Callable[[str], io.FileIO]) -> None:
        self.path, self.manifest, self.tag, self._open_file = path, manifest, tag, open_file
        self._files: dict[str, mmap.mmap] = {}
        self._checked: set[tuple[str, int]] = set()

    @property
    def extra(self) -> Any:
        """The script's `extra`."""
        return decode(self.manifest.extra.get("extra"))

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self.manifest.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return self._tensor(name).shape

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor on the CPU."""
        entry = self._tensor(name)
        if len(entry.chunks) == 1:
            return self._values(name, entry, entry.chunks[0])
        whole = torch.empty(entry.shape, dtype=dtype_of(name, entry.dtype))
        self.read_into(name, Piece(whole, (0,) * len(entry.shape), entry.shape))
        return whole

    def views(self, name: str, piece: Piece) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return pairs of views for `target.copy_(source)`, which together fill the piece's tensor.

        Raises `ParallelError` when the checkpoint has no such tensor, of another shape, or with damaged values.
        """
        entry = self._tensor(name)
        if entry.shape != tuple(piece.shape):
            raise ParallelError(
                f"the checkpoint is of another model: {name!r} has shape {list(entry.shape)}, the model's"
                f" {list(piece.shape)}"
            )
        target = piece.tensor.detach()
        offsets, sizes = piece.offsets, tuple(target.shape)
        for chunk in entry.chunks:
            # The mesh that wrote it reads it: no other chunk has a part of this box.
            if chunk.offsets == offsets and chunk.sizes == sizes:
                return [(target, self._values(name, entry, chunk))]
        pairs = []
        for chunk in entry.chunks:
            common = overlap(chunk.offsets, chunk.sizes, offsets, sizes)
            if common is not None:
                begin, counts = common
                source = self._values(name, entry, chunk)[box(_minus(begin, chunk.offsets), counts)]
                pairs.append((target[box(_minus(begin, offsets), counts)], source))
        return pairs

    def read_into(self, name: str, piece: Piece) -> None:
        """Copy the values of a box into the piece's tensor, which keeps its type and device."""
        for target, source in self.views(name, piece):
            target.copy_(source)

    def values(self) -> dict[str, Any]:
        """Return the numbers and strings of the state, by joined name."""
        return {name: decode(value) for name, value in self.manifest.extra.get("values", {}).items()}

    def groups(self, prefix: str) -> list[dict[str, Any]] | None:
        """Return the parameter groups of an optimizer, None when the checkpoint has none under this prefix."""
        groups = self.manifest.extra.get("groups", {}).get(prefix)
        return None if groups is None else [decode(group) for group in groups]

    def split(self, name: str) -> tuple[str, ...]:
        """Return the keys that a joined name was joined from."""
        return tuple(self.manifest.extra.get("paths", {}).get(name) or name.split("."))

    def state(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the state of these tensors, by default of all: dicts as they were saved, with whole tensors."""
        wanted = self.names if names is None else list(names)
        # Values first: one may be an empty dict on a rank, which others fill.
        entries = {self.split(name): value for name, value in self.values().items()}
        entries.update({self.split(name): self.tensor(name) for name in wanted})
        state = nest(entries)
        for prefix in self.manifest.extra.get("groups", {}):
            inner = state
            for key in prefix.split("."):
                inner = inner.setdefault(key, {})
            inner["param_groups"] = self.groups(prefix)
        return state

    def user_content(self) -> Any:
        """Return what the script gave as `user_content`, or None. Unpickles: only for folders that you trust."""
        file = self.manifest.files.get(USER_CONTENT)
        if file is None:
            return None
        with self._open_file(USER_CONTENT) as stream:
            content = stream.read()
        if zlib.crc32(content) != file.head_crc32:
            raise DamagedError(self.tag, f"{self.path / USER_CONTENT} is damaged: its checksum differs")
        # Not from the path, whose file may be another one by now.
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)

    def _tensor(self, name: str) -> Tensor:
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise ParallelError(f"the checkpoint {self.path} has no tensor {name!r}: it is of another model") from None

    def _values(self, name: str, entry: Tensor, chunk: Chunk) -> torch.Tensor:
        """Return the values of a chunk, from the mapped file. The checksum is computed once."""
        count = math.prod(chunk.sizes)
        dtype = dtype_of(name, entry.dtype)
        if not count:
            return torch.empty(chunk.sizes, dtype=dtype)
        data = self._map(chunk.file)
        if (chunk.file, chunk.start) not in self._checked:
            size = entry.bytes_of(chunk)
            if zlib.crc32(memoryview(data)[chunk.start : chunk.start + size]) != chunk.crc32:
                raise DamagedError(self.tag, f"{self.path / chunk.file} is damaged: the checksum differs of {name!r}")
            self._checked.add((chunk.file, chunk.start))
        return torch.frombuffer(data, dtype=dtype, count=count, offset=chunk.start).view(chunk.sizes)

    def _map(self, name: str) -> mmap.mmap:
        if name not in self._files:
            with self._open_file(name) as stream:
                # Not ACCESS_READ: an optimizer keeps the tensors that it loads, and its first step would then end the
                # process by a signal.
                self._files[name] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._files[name]


def _newest(folder: Path, passed: Mapping[str, str] = MappingProxyType({})) -> Listed:
    newest, problem = newest_complete(folder, passed)
    if problem is not None:
        warnings.warn(f"{problem}; the checkpoint {newest.tag!r} is used instead", stacklevel=3)
    return newest


def dtype_of(name: str, dtype: str) -> torch.dtype:
    """Return torch's type of a saved tensor. Raises `ParallelError` for one that this torch has not."""
    if dtype not in TYPES:
        raise ParallelError(
            f"{name!r} is of the type {dtype}, which torch {torch.__version__} has not; use a newer one"
        )
    return TYPES[dtype]


def _minus(offsets: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
    return tuple(offset - other for offset, other in zip(offsets, others, strict=True))
