"""Unpack tar archives from unknown authors; the only extractor of code, models and files of containers.

    file or stream -> Guard          bounds the bytes of each header, refuses to go back
                   -> tarfile        parses the headers
                   -> Unpacking      checks each member, and writes it relative to a descriptor (`safe_tree`)

Members are files, folders and links that stay inside. Owners, special mode bits, and modes of folders are not restored.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from herringbone_contract import safe_tree
from herringbone_contract.errors import ArchiveError, InputError
from herringbone_contract.masking import printable

# An archive of a kilobyte can announce a header of 8 GB. Real ones hold a name, a link and a few attributes.
_MAX_HEADER_BYTES = 4 << 20
_MAX_MEMBERS = 2_000_000
_MAX_NAME_BYTES = 255
_MAX_LINK_BYTES = 4_095
_PIECE_BYTES = 1 << 20
# The part of a disk's free space that one archive may take: other programs need some to go on.
_FREE_SHARE = 0.95
# Data behind the end of a tar is padding; more than this is no padding.
_MAX_PADDING_BYTES = 64 << 20

Refused = Callable[[str, str], None]


def unpack(
    source: Path | IO[bytes],
    into: Path,
    *,
    shown: str,
    in_folder: bool = False,
    root: str = "",
    limit: int | None = None,
    refused: Refused | None = None,
) -> None:
    """Unpack a tar into the existing folder `into`: a file, compressed or not, or a stream, not compressed.

    >>> unpack(Path("model.tar.gz"), Path("model"), shown="model model.tar.gz")     # doctest: +SKIP

    `shown` names the archive in errors. With `in_folder`, all members are in one folder, whose name is cut off. An
    absolute link below `root` becomes a relative one. The members may have `limit` bytes together, by default most of
    the disk's free space. `refused` gets the name of each member that must not be unpacked, and the reason; without
    it, such a member is an error.

    Raises `ArchiveError` for a damaged, malicious or too large archive, some of whose members may be in `into` then;
    `InputError` when there is no such file; `OSError` when `into` cannot be written, for example on a full disk.
    """
    with safe_tree.folder(into) as top, _opened(source, shown) as stream:
        unpacking = _Unpacking(top, root, in_folder=in_folder)
        limit = _limit(top) if limit is None else limit
        for archive, member in _members(stream, shown):
            limit -= member.size if member.isreg() else 0
            if limit < 0:
                raise ArchiveError(
                    f"{shown} is refused: its files are larger than the space for them on the disk of {into}; unpack "
                    "it by hand where there is more space, if you trust its author"
                )
            try:
                unpacking.add(archive, member, shown)
            except ValueError as error:
                name, reason = printable(unpacking.name_of(member.name)), printable(str(error))
                if refused is None:
                    raise ArchiveError(f"{shown}: member {name!r} is refused: {reason}") from None
                refused(name, reason)


def names_in(source: Path, *, shown: str) -> list[str]:
    """Return the names of all members. Raises the errors of `unpack`."""
    with _opened(source, shown) as stream:
        return [member.name for _, member in _members(stream, shown)]


class _Guard:
    """A stream that only goes forward, and bounds the bytes that `tarfile` may read for one header."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0
        # What the header that is being read may still take; infinity while content is read.
        self.header_left = math.inf
        # The last block that was read; at the end of the members it shows whether the archive ended there.
        self._last = b""

    @property
    def at_end(self) -> bool:
        """True if the last block was one of zeros, the regular end: `tarfile` takes a damaged header for it, too."""
        return self._last == bytes(tarfile.BLOCKSIZE)

    def read(self, size: int) -> bytes:
        self.header_left -= size
        if self.header_left < 0:
            raise tarfile.ReadError(f"a header has more than {_MAX_HEADER_BYTES} bytes")
        pieces = []
        # A socket returns less than it is asked for, and `tarfile` takes that for the end.
        while size > 0 and (piece := self._stream.read(min(size, _PIECE_BYTES))):
            pieces.append(piece)
            size -= len(piece)
            self._position += len(piece)
        self._last = b"".join(pieces)
        return self._last

    def seek(self, position: int) -> None:
        # A negative size in a header would send `tarfile` back, and round without end.
        if position < self._position:
            raise tarfile.ReadError("a header has a size below zero")
        while self._position < position and (piece := self._stream.read(min(position - self._position, _PIECE_BYTES))):
            self._position += len(piece)

    def tell(self) -> int:
        return self._position


@contextlib.contextmanager
def _opened(source: Path | IO[bytes], shown: str) -> Iterator[IO[bytes]]:
    """Open a file, and the decompressor that its first bytes call for; a stream stays as it is."""
    if not isinstance(source, Path):
        yield source
        return
    if not source.is_file():
        raise InputError(f"{shown} does not exist on this host, or is no file")
    with source.open("rb") as file:
        begin = file.read(6)
        file.seek(0)
        with _decompressed(file, begin) as stream:
            yield stream


def _decompressed(file: IO[bytes], begin: bytes) -> Any:
    # Imported here: most archives need one of them.
    if begin.startswith(b"\x1f\x8b"):
        import gzip

        return gzip.GzipFile(fileobj=file)
    if begin.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(file)
    if begin == b"\xfd7zXZ\x00":
        import lzma

        return lzma.LZMAFile(file)
    return contextlib.nullcontext(file)


def _members(stream: IO[bytes], shown: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members, and for each the archive to read its content from. Raises `ArchiveError`."""
    guard = _Guard(stream)
    with _parsing(guard, shown):
        archive = tarfile.TarFile(fileobj=cast("IO[bytes]", guard))
    # The constructor has read the first header.
    has_members = not guard.at_end
    for _ in range(_MAX_MEMBERS):
        with _parsing(guard, shown):
            member = archive.next() if has_members else None
            if member is None:
                if not guard.at_end:
                    raise tarfile.ReadError("it ends too early, or a header is damaged")
                # The decompressor compares its checksum at the end of the data.
                guard.header_left = _MAX_PADDING_BYTES
                while guard.read(_PIECE_BYTES):
                    pass
                return
            if member.size < 0:
                raise tarfile.ReadError("a member has a size below zero")
        # `tarfile` would keep all members until the end.
        archive.members.clear()  # type: ignore[attr-defined]
        yield archive, member
    raise ArchiveError(f"{shown} is refused: it has more than {_MAX_MEMBERS} members")


@contextlib.contextmanager
def _parsing(guard: _Guard, shown: str) -> Iterator[None]:
    """Bound the bytes of a header, and turn what parsers raise for damaged input into `ArchiveError`."""
    guard.header_left = _MAX_HEADER_BYTES
    try:
        yield
    except ArchiveError:
        raise
    # Not only TarError: zlib.error, EOFError, ValueError, KeyError, OverflowError, RecursionError and others, too.
    except Exception as error:
        text = printable(str(error)) or type(error).__name__
        raise ArchiveError(f"{shown} is damaged or incomplete, or no tar: {text}") from error
    guard.header_left = math.inf


class _Unpacking:
    """Writes members below an open folder. `add` raises `ValueError` with the reason for a member that must not be."""

    def __init__(self, top: int, root: str, *, in_folder: bool) -> None:
        self._top, self._root, self._in_folder = top, root, in_folder

    def name_of(self, name: str) -> str:
        return name.partition("/")[2] if self._in_folder else name

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, shown: str) -> None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise ValueError("it is not a file, a folder or a link")
        parts = _parts(self.name_of(member.name))
        if not parts:
            # AWS's own images have the folder itself as a member. Its mode and times stay as they are here.
            if not member.isdir():
                raise ArchiveError(f"{shown} is refused: it replaces its own folder by a link or a file")
            return
        with self._parent(parts) as parent:
            if member.isdir():
                if not _is_folder(parts[-1], parent):
                    _clear(parts[-1], parent)
                    os.mkdir(parts[-1], dir_fd=parent)
            elif member.issym():
                target = self._link_text(parts, member.linkname)
                _clear(parts[-1], parent)
                os.symlink(target, parts[-1], dir_fd=parent)
            elif member.islnk():
                self._add_hard_link(parts, member.linkname, parent)
            else:
                _clear(parts[-1], parent)
                self._write(archive, member, parts[-1], parent, shown)

    @contextlib.contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open the folder that a member lies in, and make it if necessary."""
        with contextlib.ExitStack() as levels:
            parent = self._top
            for part in parts[:-1]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=parent)
                if not _is_folder(part, parent):
                    raise ValueError(f"it would land outside, or in a file: {part!r} is no folder")
                parent = levels.enter_context(safe_tree.folder(parent, part))
            yield parent

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int, shown: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            left = member.size
            # A file with holes is written with zeros for them, which `limit` has counted.
            content = archive.extractfile(member)
            while left > 0:
                with _parsing_content(shown):
                    piece = content.read(min(left, _PIECE_BYTES)) if content is not None else b""
                    if not piece:
                        raise tarfile.ReadError("it ends within a file")
                file.write(piece)
                left -= len(piece)
            file.flush()
            # The caller owns the file and must be able to read it; nobody else may change it.
            os.fchmod(descriptor, (member.mode & 0o755) | 0o600)
            with contextlib.suppress(OSError, OverflowError, ValueError, InvalidOperation):
                # As text: a float has no room for all digits.
                mtime = int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 10**9)
                os.utime(descriptor, ns=(mtime, mtime))

    def _link_text(self, parts: tuple[str, ...], text: str) -> str:
        """Return what to write into a link. Raises `ValueError` when the link could lead outside."""
        _check_text(text, _MAX_LINK_BYTES)
        path = PurePosixPath(text)
        if path.is_absolute():
            if not (self._root and path.is_relative_to(self._root)):
                raise ValueError(f"it is a link to {text}, outside")
            path = PurePosixPath("../" * (len(parts) - 1), path.relative_to(self._root))
        names = path.parts
        num_up = next((place for place, part in enumerate(names) if part != ".."), len(names))
        # The folders above a member are real ones, so leading dots stay inside. Behind a name, which may be another
        # link, they would start from wherever that link leads.
        if num_up > len(parts) - 1 or ".." in names[num_up:]:
            raise ValueError(f"it is a link to {text}, outside")
        return str(path)

    def _add_hard_link(self, parts: tuple[str, ...], text: str, parent: int) -> None:
        nothing = ValueError(f"it is a hard link to {text}, which is no file of the archive")
        try:
            source = _parts(self.name_of(text))
        except ValueError:
            raise ValueError(f"it is a link to {text}, outside") from None
        if not source:
            raise nothing
        with self._parent(source) as folder:
            # Not of links: what is written in them counts from their own place.
            try:
                if not stat.S_ISREG(os.lstat(source[-1], dir_fd=folder).st_mode):
                    raise nothing
            except FileNotFoundError:
                raise nothing from None
            if source != parts:
                _clear(parts[-1], parent)
                os.link(source[-1], parts[-1], src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)


@contextlib.contextmanager
def _parsing_content(shown: str) -> Iterator[None]:
    """Turn what decompressors raise into `ArchiveError`; errors of the disk that is written pass outside of it."""
    try:
        yield
    except Exception as error:
        raise ArchiveError(f"{shown} is damaged or incomplete: {printable(str(error))}") from error


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a member's name, none for the folder itself. Raises `ValueError` for a name outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it would land outside")
    if len(path.parts) > safe_tree.MAX_DEPTH:
        raise ValueError(f"it lies more than {safe_tree.MAX_DEPTH} folders deep")
    for part in path.parts:
        _check_text(part, _MAX_NAME_BYTES)
    return path.parts


def _check_text(text: str, max_bytes: int) -> None:
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise ValueError("a name in it is no text") from None
    if "\0" in text or not 0 < size <= max_bytes:
        raise ValueError("a name in it is empty, too long, or has a NUL")


def _is_folder(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except FileNotFoundError:
        return False


def _clear(name: str, parent: int) -> None:
    """Make room for a member; an earlier file or link goes, and a folder stays."""
    if _is_folder(name, parent):
        raise ValueError("there is a folder of that name")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _limit(top: int) -> int:
    disk = os.fstatvfs(top)
    return int(disk.f_bavail * disk.f_frsize * _FREE_SHARE)
