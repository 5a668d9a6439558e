"""Packs the hosts' results: `model/` into model.tar.gz, `output/data/` into output.tar.gz.

An archive appears complete or not at all, and the same files always produce the same bytes. The folders belong to the
job's script, so all of their files are opened through `safe_tree`, which follows no link. A file with holes is packed
with all of its zeros: where its holes are depends on the file system, and readers of the archive need not know them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from herringbone.code.reproducible import Link, Opener, write_tar, zipped
from herringbone.records.links import Listing, listing_of, packed_target
from herringbone_contract import safe_tree
from herringbone_contract.constants import DEFAULT_BASE
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE

if TYPE_CHECKING:
    from types import TracebackType

# Trained weights shrink by 7 % at any level. Level 1 takes 80 times as long as level 0, which only stores them.
_STORED, _COMPRESSED = 0, 1
# The samples of this size, from the begin of each file, decide whether an archive is compressed.
_SAMPLE_BYTES, _MOST_SAMPLES = 1 << 16, 100
_WORTHWHILE = 0.8
_PIECE_BYTES = 1 << 20
Say = Callable[[str], None]
# Called with the bytes that were packed since its last call, and with all bytes; its error ends the packing.
Step = Callable[[int, int], None]
# The hosts' names, each with the host's base folder on this machine, and on its own where that is another one.
Bases = Sequence[tuple[str, Path] | tuple[str, Path, str | None]]


class HostFolder(NamedTuple):
    """A folder of a host's tree: `inside` is its path below `base`, the host's base folder on this machine.

    `elsewhere` is the host's base folder on the machine where the script ran, None for this machine.
    """

    host: str
    base: Path
    inside: str
    elsewhere: str | None = None

    @property
    def roots(self) -> list[str]:
        """Return the paths by which the script may know the folder: in a container, and on its machine."""
        bases = [DEFAULT_BASE, str(self.base), *([] if self.elsewhere is None else [self.elsewhere])]
        return [str(PurePosixPath(base) / self.inside) for base in bases]

    @property
    def is_empty(self) -> bool:
        """Report whether there is nothing to pack. Raises `OSError` when the script replaced the folder by a link."""
        return safe_tree.is_empty(self.base, self.inside)


def no_step(_packed: int, _total: int) -> None:
    """Let the packing go on: the `step` of a caller that does not watch it."""


def pack_output(bases: Bases, results: Path, *, compress: bool, say: Say, step: Step = no_step) -> None:
    """Pack what the hosts' scripts wrote next to the model into `results`, if there is anything.

    Of two files of one name the first host's is packed. Raises the errors of `pack`.
    """
    folders = _folders(bases, INSIDE.output_data)
    if not all(folder.is_empty for folder in folders):
        pack(folders, _archive(results, "output", compress=compress), compress=compress, say=say, step=step)


def pack_model(bases: Bases, results: Path, *, compress: bool, say: Say, step: Step = no_step) -> Path | None:
    """Pack the model that the hosts' scripts wrote into `results`, as `pack_output` does.

    Returns its path, None when no script wrote a model.
    """
    if not has_model(bases):
        return None
    target = _archive(results, "model", compress=compress)
    return pack(_folders(bases, INSIDE.model), target, compress=compress, say=say, step=step)


def has_model(bases: Bases) -> bool:
    """Return True if some host's script wrote a model."""
    return not all(folder.is_empty for folder in _folders(bases, INSIDE.model))


def _folders(bases: Bases, inside: PurePath) -> list[HostFolder]:
    return [HostFolder(name, base, str(inside), *elsewhere) for name, base, *elsewhere in bases]


def _archive(results: Path, name: str, *, compress: bool) -> Path:
    return results / f"{name}{'.tar.gz' if compress else ''}"


class _File(NamedTuple):
    """A file or link to pack: its host, its size, and how to open it or what is written in it."""

    host: str
    content: Opener | Link
    size: int


def pack(folders: Iterable[HostFolder], target: Path, *, compress: bool, say: Say, step: Step = no_step) -> Path:
    """Pack the files of all hosts' folders into `target`: an archive, or a folder with `compress=False`.

    >>> folder = HostFolder("algo-1", Path("hosts/algo-1/ml"), "model")
    >>> pack([folder], Path("out/model.tar.gz"), compress=True, say=print)   # doctest: +SKIP
    PosixPath('out/model.tar.gz')

    Links inside a folder stay links. `say` gets a message about each entry that is left out: links that lead out of
    the folder or to nothing, sockets, FIFOs and devices. When two hosts have a file of the same name, the first host's
    file is packed, and `say` gets a message unless both files are equal. `step` is called for each piece that is read.
    Raises `OSError`, for example for a full disk, and the errors of `step`; the hosts' folders then stay as they are
    and `target` does not exist.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the rename is atomic and crosses no file system.
    partial_target = target.with_name(f".{target.name}.partial")
    with contextlib.ExitStack() as opened:
        files: dict[str, _File] = {}
        for folder in folders:
            # A host may end before it has made the folder.
            with contextlib.suppress(FileNotFoundError):
                _gather(folder, opened.enter_context(safe_tree.folder(folder.base, folder.inside)), files, say, step)
        total = sum(file.size for file in files.values())
        contents = {name: _stepped(file.content, step, total) for name, file in sorted(files.items())}
        # A process that was killed while it packed has left its own.
        _remove(partial_target)
        try:
            if compress:
                _write_archive(contents, partial_target)
            else:
                _write_folder(contents, partial_target)
            partial_target.replace(target)
        except BaseException:
            _remove(partial_target)
            raise
    return target


def _gather(folder: HostFolder, top: int, files: dict[str, _File], say: Say, step: Step) -> None:
    """Add what is to pack of one host's folder, opened as `top`, to `files`, by the names in the archive."""
    entries = []
    for entry in safe_tree.walk(top):
        step(0, 0)
        entries.append(entry)
    listing = listing_of(entries)
    taken = {str(above) for name in files for above in PurePosixPath(name).parents}
    for entry in entries:
        name = entry.name
        if entry.kind == "folder":
            continue
        try:
            content = _content(entry, top, listing, folder.roots)
            if name in taken or any(str(above) in files for above in PurePosixPath(name).parents):
                raise ValueError("another host has a file where this host has a folder; write it under another name")
            if name in files and not _same(content, files[name].content, step):
                raise ValueError(f"{files[name].host} has a file of that name; write it under another")
        except ValueError as error:
            say(f"{printable(name)} of {folder.host} is left out: {printable(str(error))}")
        else:
            files.setdefault(name, _File(folder.host, content, entry.state.st_size))


def _content(entry: safe_tree.Entry, top: int, listing: Listing, roots: list[str]) -> Opener | Link:
    """Return how an entry is packed. Raises `ValueError` with the reason why it is not."""
    if entry.kind == "file":
        return partial(safe_tree.open_file, top, entry.name)
    if entry.kind == "link":
        return Link(packed_target(entry.name, listing, roots))
    raise ValueError(f"it is a {entry.kind}, and archives of results have files and links only")


def _same(one: Opener | Link, other: Opener | Link, step: Step) -> bool:
    if isinstance(one, Link) or isinstance(other, Link):
        return one == other
    with one() as first, other() as second:
        if os.fstat(first.fileno()).st_size != os.fstat(second.fileno()).st_size:
            return False
        while piece := first.read(_PIECE_BYTES):
            step(0, 0)
            if piece != second.read(_PIECE_BYTES):
                return False
    return True


def _stepped(content: Opener | Link, step: Step, total: int) -> Opener | Link:
    if isinstance(content, Link):
        return content
    return lambda: cast("IO[bytes]", _SteppedFile(content(), step, total))


class _SteppedFile:
    """A file that calls `step` for each piece that is read from it."""

    def __init__(self, file: IO[bytes], step: Step, total: int) -> None:
        self._file, self._step, self._total = file, step, total

    def __enter__(self) -> _SteppedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._step(len(piece), self._total)
        return piece


def _write_archive(contents: dict[str, Opener | Link], path: Path) -> None:
    # A gzip file in any case: the name, model.tar.gz, is SageMaker's.
    level = _COMPRESSED if _shrinks(contents) else _STORED
    with path.open("wb") as raw, zipped(raw, level=level) as compressed:
        write_tar(contents, cast("IO[bytes]", compressed))


def _shrinks(contents: dict[str, Opener | Link]) -> bool:
    """Return True if compression saves at least a fifth of the files' bytes, judged by the beginning of each file."""
    openers = [content for content in contents.values() if not isinstance(content, Link)]
    size, saved = 0, 0.0
    # Evenly among the files, and the same ones each time, so that equal files make equal bytes.
    for opener in openers[:: len(openers) // _MOST_SAMPLES + 1]:
        with opener() as file:
            sample = file.read(_SAMPLE_BYTES)
            num_bytes = os.fstat(file.fileno()).st_size
        if sample:
            size += num_bytes
            saved += num_bytes * (1 - len(zlib.compress(sample, _COMPRESSED)) / len(sample))
    return saved > (1 - _WORTHWHILE) * size


def _write_folder(contents: dict[str, Opener | Link], path: Path) -> None:
    path.mkdir()
    for name, content in contents.items():
        copy = path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            copy.symlink_to(content.target)
            continue
        with content() as file, copy.open("wb") as written:
            shutil.copyfileobj(file, written, _PIECE_BYTES)
            copy.chmod(0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
