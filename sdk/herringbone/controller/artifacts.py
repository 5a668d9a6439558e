"""Packs the hosts' results: `model/` into model.tar.gz, `output/data/` into output.tar.gz.

An archive appears complete or not at all, and the same files always produce the same bytes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, cast

from herringbone.code.reproducible import write_tar, zipped

# Weights hardly shrink at any level, and level 1 is several times as fast as the default.
_COMPRESSION_LEVEL = 1
Say = Callable[[str], None]


def pack(folders: Iterable[tuple[str, Path]], target: Path, *, compress: bool, say: Say) -> Path:
    """Pack the files of all hosts' folders into `target`: an archive, or a folder with `compress=False`.

    >>> pack([("algo-1", Path("model"))], Path("out/model.tar.gz"), compress=True, say=print)   # doctest: +SKIP
    PosixPath('out/model.tar.gz')

    When two hosts have a file of the same name, the first host's file is packed, and `say` gets a message unless both
    files are equal. Raises `OSError`, for example for a full disk; the hosts' folders then stay as they are and
    `target` does not exist.
    """
    files = _gather(folders, say)
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the rename is atomic and crosses no file system.
    partial = target.with_name(f".{target.name}.partial")
    try:
        if compress:
            _write_archive(files, partial)
        else:
            _write_folder(files, partial)
        partial.replace(target)
    except BaseException:
        _remove(partial)
        raise
    return target


def _gather(folders: Iterable[tuple[str, Path]], say: Say) -> dict[str, Path]:
    """Return the files to pack by their names in the archive, sorted."""
    sources: dict[str, tuple[str, Path]] = {}
    for host, folder in folders:
        for path in _files_below(folder, say):
            name = path.relative_to(folder).as_posix()
            if name not in sources:
                sources[name] = (host, path)
            elif not _same(path, sources[name][1]):
                say(f"{name} of {host} is left out: {sources[name][0]} has a file of that name; write it under another")
    return {name: path for name, (_, path) in sorted(sources.items())}


def _files_below(folder: Path, say: Say) -> list[Path]:
    files = []
    # Links are followed, because a link to a file outside the folder would point nowhere in the archive.
    for inside, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in names:
            path = Path(inside, name)
            if not path.exists():
                say(f"{path.relative_to(folder)} is left out: it is a link to nothing")
            elif stat.S_ISREG(path.stat().st_mode):
                files.append(path)
    return files


def _same(one: Path, other: Path) -> bool:
    import filecmp

    return filecmp.cmp(one, other, shallow=False)


def _write_archive(files: dict[str, Path], path: Path) -> None:
    with path.open("wb") as raw, zipped(raw, level=_COMPRESSION_LEVEL) as compressed:
        write_tar(files, cast("IO[bytes]", compressed))


def _write_folder(files: dict[str, Path], path: Path) -> None:
    path.mkdir()
    for name, file in files.items():
        copy = path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        copy.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
