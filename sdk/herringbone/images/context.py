"""The files that are sent to the engine for a build, from memory or from the disk."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from herringbone_contract.errors import InputError

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Context:
    """A build's files by their names.

    `known_digests` holds hashes computed before, because hashing a framework's wheel takes seconds.

    >>> Context({"Dockerfile": b"FROM base"}).digest[:8]
    '7bb267bd'
    """

    files: Mapping[str, bytes | Path]
    known_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The hash of all names and contents."""
        tree_hash = hashlib.sha256()
        for name in sorted(self.files):
            digest = self.known_digests.get(name) or digest_of(self.files[name])
            tree_hash.update(f"{name}\0{digest}\n".encode())
        return tree_hash.hexdigest()

    def write(self, into: IO[bytes]) -> None:
        """Write the files as a tar, all with the same date and owner, so that the builder's cache recognises them."""
        with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(self.files):
                content = self.files[name]
                entry = tarfile.TarInfo(name)
                entry.mode = 0o644  # the Dockerfiles run their scripts by `sh`, so no file has to be executable
                if isinstance(content, bytes):
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                else:
                    entry.size = content.stat().st_size
                    with content.open("rb") as file:
                        archive.addfile(entry, file)


def digest_of(content: bytes | Path) -> str:
    """Return the SHA-256 of bytes or of a file, in hexadecimal."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    content_hash = hashlib.sha256()
    with content.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            content_hash.update(piece)
    return content_hash.hexdigest()


def wheels_in(wheelhouse: Path) -> dict[str, Path]:
    """Return the wheels of a folder by the names of their files. Raises `InputError` without the folder."""
    if not wheelhouse.is_dir():
        raise InputError(f"the wheelhouse {wheelhouse} is not a folder")
    return {path.name: path for path in sorted(wheelhouse.glob("*.whl"))}


def wheel_files(wheels: Iterable[Path]) -> Iterator[tuple[str, bytes | Path]]:
    """Yield the files of the folder `wheels` of a context."""
    # The tar has no entries for folders, and pip warns when --find-links names one that is missing.
    yield "wheels/README", b"Wheels of the user's own, if there are any.\n"
    yield from ((f"wheels/{path.name}", path) for path in wheels)
